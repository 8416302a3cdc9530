#!/bin/bash
#SBATCH --job-name="train-ddp"
#SBATCH --comment="fleetctl:__RUN__/1"
#SBATCH --chdir="/home/me/specs"
#SBATCH --output="/runs/50%% done/__RUN__/logs/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --dependency="afterany:41:42"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres="gpu:1"
#SBATCH --time=0-00:10:00

# Run __RUN__, made by fleetctl __VERSION__ from its spec.json. Change the spec and submit again, not this file.

trap '' USR1

# Claims the run (a duplicate ends itself here), sets the environment, starts the steps and waits for them.
# Each step: its name, after how many words srun is told its nodes (0: never), how many words follow, and the words.
exec '/opt/fleet ctl/bin/python' -I -m fleetctl.launch --run-dir '/runs/50% done/__RUN__' --submission 1 --needs /runs/first \
  --nodes 2 --spares 0 --max-failures 3 --checkpoint-dir /home/me/specs/checkpoints/ddp --checkpoint-format own --checkpoint-load none --checkpoint-interval-s 5 --checkpoint-ranks 2 \
  --step train 1 11 srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --gres=gpu:1 --kill-on-bad-exit=1 --export=ALL bash -c 'exec torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$FLEETCTL_RUN_ID.$FLEETCTL_ATTEMPT" train_ddp.py --steps 300'
