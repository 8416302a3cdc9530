#!/bin/bash
#SBATCH --job-name="sweep-lr-seed"
#SBATCH --comment="fleetctl:__RUN__/1"
#SBATCH --chdir="/home/me/specs"
#SBATCH --output="/runs/50%% done/__RUN__/logs/slurm-%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --array=0-3%2
#SBATCH --dependency="afterany:41:42"
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --gpus-per-node="1"
#SBATCH --time=0-00:10:00

# Run __RUN__, made by fleetctl __VERSION__ from its spec.json. Change the spec and submit again, not this file.

# The values of this element of the sweep
fleetctl_values=(0.05 0.1)
export LR="${fleetctl_values[SLURM_ARRAY_TASK_ID / 2 % 2]}"
fleetctl_values=(1 2)
export SEED="${fleetctl_values[SLURM_ARRAY_TASK_ID / 1 % 2]}"

# Claims the run (a duplicate ends itself here), sets the environment, starts the steps and waits for them.
# Each step: its name, after how many words srun is told its nodes (0: never), how many words follow, and the words.
exec '/opt/fleet ctl/bin/python' -I -m fleetctl.launch --run-dir '/runs/50% done/__RUN__' --submission 1 --needs /runs/first \
  --nodes 1 --spares 0 \
  --step train 1 11 srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 --gpus-per-node=1 --kill-on-bad-exit=1 --export=ALL bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
python3 train_numpy.py --steps 200 --lr "$LR" --seed "$SEED"'
