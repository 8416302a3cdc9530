#!/bin/bash
#SBATCH --job-name="train-numpy"
#SBATCH --comment="fleetctl:__RUN__/1"
#SBATCH --chdir="/home/me/specs"
#SBATCH --output="/runs/50%% done/__RUN__/logs/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --no-kill
#SBATCH --dependency="afterany:41:42"
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --gres="gpu:8"
#SBATCH --time=0-00:10:00

# Run __RUN__, made by fleetctl __VERSION__ from its spec.json. Change the spec and submit again, not this file.

trap '' USR1

# Claims the run (a duplicate ends itself here), sets the environment, starts the steps and waits for them.
# Each step: its name, after how many words srun is told its nodes (0: never), how many words follow, and the words.
exec '/opt/fleet ctl/bin/python' -I -m fleetctl.launch --run-dir '/runs/50% done/__RUN__' --submission 1 --needs /runs/first \
  --nodes 2 --spares 1 --max-failures 3 --checkpoint-dir /home/me/specs/checkpoints/numpy --checkpoint-format own --checkpoint-load none --checkpoint-interval-s 3 \
  --step train 1 11 srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:8 --kill-on-bad-exit=1 --export=ALL bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
python3 train_numpy.py --steps 300'
