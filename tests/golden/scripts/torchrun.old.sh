#!/bin/bash
#SBATCH --job-name="ddp"
#SBATCH --comment="fleetctl:__RUN__/1"
#SBATCH --chdir="/home/me/specs"
#SBATCH --output="/runs/50%% done/__RUN__/logs/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --dependency="afterany:41:42"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres="gpu:4"
#SBATCH --mem-per-cpu=100G
#SBATCH --time=0-04:00:00

# Run __RUN__, made by fleetctl __VERSION__ from its spec.json. Change the spec and submit again, not this file.

trap '' USR1

# Claims the run (a duplicate ends itself here), sets the environment, starts the steps and waits for them.
# Each step: its name, after how many words srun is told its nodes (0: never), how many words follow, and the words.
exec '/opt/fleet ctl/bin/python' -I -m fleetctl.launch --run-dir '/runs/50% done/__RUN__' --submission 1 --needs /runs/first \
  --nodes 2 --spares 0 --max-failures 3 --checkpoint-dir /home/me/specs/ckpt --checkpoint-format auto --checkpoint-load latest --checkpoint-ranks 8 \
  --step train 1 25 srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --gres=gpu:4 --kill-on-bad-exit=1 --export=ALL apptainer exec --nv --bind /data:/data --bind '/runs/50% done/__RUN__:/runs/50% done/__RUN__' --bind /home/me/specs/ckpt:/home/me/specs/ckpt /images/torch.sif bash -c 'exec torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$FLEETCTL_RUN_ID.$FLEETCTL_ATTEMPT" "$@"' torchrun train.py --lr 0.1 'a b'
