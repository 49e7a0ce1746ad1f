"""Put in front of PYTHONPATH: no Python process reaches another machine, and every attempt is written down."""

import os
import sys

_FILE = os.environ["SOCKET_GUARD_FILE"]
_WATCHED = {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind"}
_HERE = ("localhost", "127.", "::1", "[::1]")


def _refuse(event: str, arguments: tuple) -> None:
    if event not in _WATCHED:
        return
    place = arguments[1] if event in ("socket.connect", "socket.sendto", "socket.bind") else arguments[0]
    if isinstance(place, (str, bytes)) and event not in ("socket.getaddrinfo", "socket.gethostbyname"):
        return  # a socket of the file system
    host = place[0] if isinstance(place, tuple) else place
    host = host.decode() if isinstance(host, bytes) else host
    if host is None or str(host).startswith(_HERE):
        return
    if isinstance(place, int) or (event == "socket.getaddrinfo" and not host):
        return
    with open(_FILE, "a") as file:  # noqa: PTH123 - nothing is imported that was not
        file.write(f"{event} {host} by {' '.join(sys.argv)[:100]}\n")
    raise OSError(f"the socket guard refuses {event} {host}")


sys.addaudithook(_refuse)
