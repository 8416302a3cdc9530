"""A small data-parallel training with nothing but NumPy and sockets.

    fleetctl submit train.yaml      under Slurm; fleetctl sets MASTER_ADDR and MASTER_PORT
    python3 train_numpy.py          one process, by hand; needs NumPy, and fleetctl on PYTHONPATH

Every rank holds the same two-layer network and its own share of each batch. The gradients are summed on rank 0 in
rank order, so that a run with the same number of ranks ends with the same parameters, bit for bit. A rank that dies
or freezes ends the others within seconds: fleetctl can only bring back a training that stops.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import struct
import sys
import time
from functools import reduce
from typing import Callable

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy is imported: many ranks may share a few cores

import numpy as np

from fleetctl.train.checkpointer import CannotLoad, Checkpointer, Superseded
from fleetctl.train.progress import Progress

INPUTS, HIDDEN, SAMPLES, BATCH = 16, 32, 4096, 256
LENGTH = struct.Struct(">Q")  # what stands before each message: its length in bytes
LONGEST_MESSAGE = 1 << 20
WELCOME = b"welcome"


class PeerLost(Exception):
    """Another rank died, froze or sent what it should not: the training cannot go on."""


def world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) by hand. Each group of a hetjob counts from 0."""
    for names in ("FLEETCTL_GROUP_RANK FLEETCTL_GROUP_SIZE", "SLURM_PROCID SLURM_NTASKS", "RANK WORLD_SIZE"):
        rank, size = names.split()
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def send(peer: socket.socket, payload: bytes, timeout_s: float) -> None:
    peer.settimeout(timeout_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # everyone waits for this message: no batching
    peer.sendall(LENGTH.pack(len(payload)) + payload)


def receive(peer: socket.socket, timeout_s: float) -> bytes:
    """One whole message within `timeout_s`: a peer that only trickles bytes is lost too."""
    deadline, got, wanted = time.monotonic() + timeout_s, b"", LENGTH.size
    while len(got) < wanted:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        piece = peer.recv(wanted - len(got))
        if not piece:
            raise ConnectionError("it closed the connection")
        got += piece
        if len(got) == LENGTH.size == wanted:
            wanted += LENGTH.unpack(got)[0]
            if wanted > LONGEST_MESSAGE:
                raise ConnectionError(f"it announced a message of {wanted} bytes")
    return got[LENGTH.size :]


class Ranks:
    """The ranks of this training: rank 0 holds a connection to each other rank, the others one to rank 0."""

    def __init__(self, connect_timeout_s: float, peer_timeout_s: float) -> None:
        self.rank, self.size = world()
        self.peer_timeout_s = peer_timeout_s
        self.peers: dict[int, socket.socket] = {}
        address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29400")))
        # Who we are: a left-over rank of another job or of an earlier attempt must not join this one.
        self.team = f"{os.environ.get('SLURM_JOB_ID')}/{os.environ.get('FLEETCTL_ATTEMPT')}/{self.size}"
        deadline = time.monotonic() + connect_timeout_s
        if self.size > 1:
            self._listen(address[1], deadline) if self.rank == 0 else self._join(address, deadline)

    def _listen(self, port: int, deadline: float) -> None:
        with socket.create_server(("", port), backlog=self.size) as server:
            while len(self.peers) < self.size - 1:
                try:
                    server.settimeout(max(0.001, deadline - time.monotonic()))
                    peer, _ = server.accept()
                except socket.timeout:
                    raise PeerLost(f"ranks {sorted({*range(1, self.size)} - {*self.peers})} did not come") from None
                try:
                    team, rank = receive(peer, 2.0).decode().rsplit("#", 1)
                    if team != self.team or not 0 < int(rank) < self.size:
                        raise ValueError("not one of us")
                    self.peers[int(rank)] = peer
                except (OSError, ValueError):  # a port scanner or a stranger may go, we wait for ours
                    peer.close()
        for peer in self.peers.values():  # only now: a rank's patience with the others starts when all are here
            send(peer, WELCOME, self.peer_timeout_s)

    def _join(self, address: tuple[str, int], deadline: float) -> None:
        while time.monotonic() < deadline:
            try:
                self.peers[0] = socket.create_connection(address, timeout=2.0)
                send(self.peers[0], f"{self.team}#{self.rank}".encode(), 2.0)
                if receive(self.peers[0], deadline - time.monotonic()) == WELCOME:
                    return
            except OSError:
                pass  # rank 0 is not there yet, or an earlier attempt still holds its port
            time.sleep(0.1)
        raise PeerLost(f"rank 0 was not found at {address[0]}:{address[1]}")

    def exchange(self, payload: bytes, combine: Callable[[list[bytes]], bytes]) -> bytes:
        """Everyone gets `combine` of all ranks' payloads, which rank 0 computes from them in rank order."""
        other = 0
        try:
            if self.rank == 0:
                payloads = [payload]
                for other in range(1, self.size):
                    payloads.append(receive(self.peers[other], self.peer_timeout_s))
                result = combine(payloads)
                for other in range(1, self.size):
                    send(self.peers[other], result, self.peer_timeout_s)
                return result
            send(self.peers[0], payload, self.peer_timeout_s)
            return receive(self.peers[0], self.peer_timeout_s)
        except OSError as error:
            raise PeerLost(f"lost rank {other}: {error}") from error

    def all_reduce(self, mine: np.ndarray) -> np.ndarray:
        """The sum over all ranks of `mine` (n,), float64; the same bits on each rank."""
        total = self.exchange(mine.tobytes(), lambda all_: reduce(np.add, map(np.frombuffer, all_)).tobytes())
        return np.frombuffer(total)


class Network:
    """y = tanh(x W1 + b1) W2 + b2. All parameters lie in one vector, so that one all-reduce carries them."""

    def __init__(self, random: np.random.Generator) -> None:
        shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.parameters = random.normal(0.0, 0.25, sum(sizes))
        parts = np.split(self.parameters, np.cumsum(sizes)[:-1])  # views: they follow when the vector changes
        self.w1, self.b1, self.w2, self.b2 = (part.reshape(shapes[i]) for i, part in enumerate(parts))

    def loss_and_gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Summed squared error of samples x (n, INPUTS), y (n, 1), and its gradient, one vector like `parameters`."""
        hidden = np.tanh(x @ self.w1 + self.b1)
        error = hidden @ self.w2 + self.b2 - y
        back = 2 * error @ self.w2.T * (1 - hidden**2)
        parts = (x.T @ back, back.sum(axis=0), 2 * hidden.T @ error, 2 * error.sum(axis=0))
        return float((error**2).sum()), np.concatenate([part.ravel() for part in parts])


def train(ranks: Ranks, progress: Progress, checkpoints: Checkpointer, options: argparse.Namespace) -> None:
    random = np.random.default_rng(options.seed)  # the same on all ranks: one data set, one start, one order
    x = random.normal(size=(SAMPLES, INPUTS))
    y = np.sin(x @ random.normal(size=(INPUTS, 1)) / 2)
    network, loss, first = Network(random), float("nan"), 1
    loaded = checkpoints.load()  # the same on all ranks; None: from scratch
    if loaded is not None:
        network.parameters[:] = loaded.state["parameters"]
        random.bit_generator.state = loaded.state["random"]  # it also tells where we are in the data
        loss, first = loaded.state["loss"], loaded.training_step + 1
    for step in range(first, options.steps + 1):
        started = time.monotonic()
        mine = random.permutation(SAMPLES)[:BATCH][ranks.rank :: ranks.size]
        own_loss, own_gradient = network.loss_and_gradient(x[mine], y[mine])
        total = ranks.all_reduce(np.append(own_gradient, own_loss)) / BATCH
        network.parameters -= options.lr * total[:-1]
        loss = float(total[-1])
        progress.update(training_step=step, target_step=options.steps, loss=loss)
        told = checkpoints.told_to_end  # asked before `due`: a SIGTERM between the two is for the next step then
        if checkpoints.due(step):  # on rank 0 only: all ranks hold the same, so one saves for all
            state = {"parameters": network.parameters, "random": random.bit_generator.state, "loss": loss}
            checkpoints.save(step, state)
        if told and ranks.rank == 0:
            checkpoints.wait()
            raise SystemExit(143)  # 128 + SIGTERM; the other ranks end because we do
        if ranks.rank == 0 and step % 20 == 0:
            print(f"training step {step:4d}  loss {loss:.5f}", flush=True)
        time.sleep(max(0.0, options.step_time_ms / 1000 - (time.monotonic() - started)))
    digest = hashlib.sha256(network.parameters.tobytes()).digest()
    if ranks.exchange(digest, b"".join) != digest * ranks.size:
        raise PeerLost("the ranks ended with different parameters")
    progress.update(training_step=options.steps, loss=loss, done=True)
    if ranks.rank == 0:
        print(f"done: loss {loss:.5f}, parameters sha256 {digest.hex()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small data-parallel training.")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the start (default: %(default)s)")
    parser.add_argument("--step-time-ms", type=float, default=0.0, help="slow each step down, to watch it")
    parser.add_argument("--connect-timeout-s", type=float, default=60.0, help="wait for the other ranks to start")
    parser.add_argument("--peer-timeout-s", type=float, default=10.0, help="a rank silent for so long is lost")
    options = parser.parse_args()
    try:
        ranks = Ranks(options.connect_timeout_s, options.peer_timeout_s + options.step_time_ms / 1000)
        with Progress(rank=ranks.rank) as progress, Checkpointer(rank=ranks.rank) as checkpoints:
            checkpoints.save_on_sigterm()
            train(ranks, progress, checkpoints, options)
    except (PeerLost, CannotLoad, Superseded, OSError) as lost:
        sys.exit(f"rank {world()[0]}: {lost}")


if __name__ == "__main__":
    main()
