"""A program of its own: opens listening sockets on a sandbox's loopback and hands them out.

It enters the sandbox's user and network namespaces, which only a process of one thread may, and ends at once. So
nothing of ours runs inside that a program there could end or read.
"""

import os
import socket
import sys

BACKLOG = 128


def main(first: int, user: int, pipe: int, ports: list[int]) -> None:
    """`user` is the sandbox's on this host, or -1 for this one; `pipe` is where the sockets go."""
    if user != -1:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    namespaces = [os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY) for name in ("user", "net")]
    for namespace, kind in zip(namespaces, (os.CLONE_NEWUSER, os.CLONE_NEWNET), strict=True):
        os.setns(namespace, kind)
    listeners = []
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        listeners.append(listener)
    with socket.socket(fileno=pipe) as out:
        socket.send_fds(out, [b"."], [listener.fileno() for listener in listeners])


if __name__ == "__main__":
    first, user, pipe, *ports = map(int, sys.argv[1:])
    main(first, user, pipe, ports)
