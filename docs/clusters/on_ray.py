"""Run a command in workers of Ray, in one job: python on_ray.py WORKERS GPUS COMMAND."""

import os
import socket
import subprocess
import sys

import ray

count, gpus, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
folder = os.getcwd()


@ray.remote(num_cpus=0, num_gpus=gpus)
class Worker:
    """A process of the job, with its GPUs."""

    def address(self):
        """Return an address of this host with a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, address, number):
        """Run the command, which joins the other workers; return its exit code."""
        job = {"COORDINATOR": address, "PROCESSES": str(count), "JOB_COMPLETION_INDEX": str(number)}
        return subprocess.run(command, env=os.environ | job, cwd=folder, check=False).returncode


ray.init()
workers = [Worker.remote() for _ in range(count)]
address, *_ = ray.get([worker.address.remote() for worker in workers])  # all are placed
codes = ray.get([worker.run.remote(address, i) for i, worker in enumerate(workers)])
sys.exit(f"exit codes of the workers: {codes}" if any(codes) else 0)
