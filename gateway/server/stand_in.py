"""What a replaced gateway becomes where its process is what others watch: launchd, systemd, a
container, a terminal. It has a socket to the gateway that serves, hands signals on, and ends as
that one does: with the status that it says last, or with 1 if it says none.

It runs alone, of the standard library, in whatever interpreter there is; the text is passed on.
"""

import contextlib
import os
import signal
import socket
import sys


def stand_in(descriptor: int) -> int:
    connected = socket.socket(fileno=descriptor)

    def hand_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            connected.send(bytes([number]))

    # Workers that the replaced gateway had started are its children still: nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(each, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))
    status = 1
    while True:
        try:
            told = connected.recv(1)
        except OSError:
            return status
        if not told:
            return status
        status = told[0]


if __name__ == "__main__":
    os.chdir("/")
    sys.exit(stand_in(int(sys.argv[1])))
