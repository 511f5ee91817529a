#!/bin/bash
#SBATCH --job-name=train-parts
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --requeue
# A process for each GPU; JAX reads the rest from SLURM's variables.
srun --kill-on-bad-exit=1 python train_parts.py "$SCRATCH/parts"
