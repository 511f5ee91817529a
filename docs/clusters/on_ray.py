"""Train on the parts in a folder in workers of Ray: python on_ray.py FOLDER WORKERS GPUS."""

import socket
import sys

import ray
from train_parts import main

folder, count, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


@ray.remote(num_gpus=gpus)
class Worker:
    """A process of the job."""

    def address(self):
        """Return an address of this host with a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, address, number):
        """Join the other workers, and train with them."""
        cluster = {"coordinator_address": address, "num_processes": count, "process_id": number}
        return main(folder, **cluster)


ray.init()
workers = [Worker.remote() for _ in range(count)]
address = ray.get(workers[0].address.remote())
print(ray.get([worker.train.remote(address, i) for i, worker in enumerate(workers)]))
