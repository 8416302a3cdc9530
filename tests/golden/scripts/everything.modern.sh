#!/bin/bash
#SBATCH --job-name="gpt \"q\" 100%"
#SBATCH --comment="fleetctl:__RUN__/1"
#SBATCH --chdir="/data/my project"
#SBATCH --output="/runs/50%% done/__RUN__/logs/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --dependency="afterany:41:42"
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node="h100:8"
#SBATCH --mem=900G
#SBATCH --time=1-12:00:00
#SBATCH --partition="train"
#SBATCH --account="0123"
#SBATCH --qos="high"
#SBATCH --reservation="maint"
#SBATCH --constraint="nvlink&ib"
#SBATCH --exclude="gpu[007,013]"
#SBATCH --switches="1@0-00:10:00"

# Run __RUN__, made by fleetctl __VERSION__ from its spec.json. Change the spec and submit again, not this file.

export NCCL_DEBUG=WARN
export MESSAGE='it'\''s $HOME `x` \ "q"'
export TWO_LINES='one
two'
export RETURN=$'a\015b'
export EMPTY=''

if ! command -v module >/dev/null; then
  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do
    # shellcheck source=/dev/null
    if [ -r "$init" ]; then . "$init"; break; fi
  done
fi
module load cuda/12.4 || exit 1
module load 'nccl (new)' || exit 1

# Claims the run (a duplicate ends itself here), sets the environment, starts the steps and waits for them.
# Each step: its name, after how many words srun is told its nodes (0: never), how many words follow, and the words.
exec '/opt/fleet ctl/bin/python' -I -m fleetctl.launch --run-dir '/runs/50% done/__RUN__' --submission 1 --env-file /home/me/specs/secrets.env --needs /runs/first \
  --nodes 4 --spares 0 --checkpoint-dir '/data/my project/ckpt' --checkpoint-format auto --checkpoint-load latest --checkpoint-interval-s 1800 --checkpoint-ranks 32 \
  --step train 1 14 srun --nodes=4 --ntasks=32 --ntasks-per-node=8 --cpus-per-task=12 --gpus-per-node=h100:8 --kill-on-bad-exit=1 --export=ALL '--container-image=nvcr.io#nvidia/pytorch:24.05-py3' '--container-mounts=/data:/data:ro,/scratch,/runs/50% done/__RUN__:/runs/50% done/__RUN__,/data/my project/ckpt:/data/my project/ckpt' --container-workdir=/data bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
python train.py --data "$HOME/it'\''s here" | tee out.txt'
