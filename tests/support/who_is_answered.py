"""Which ways of speaking gRPC a port answers: a program for a process that has the variables of Ray's TLS."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = r"""
import json, os, socket, ssl, sys
host, port = sys.argv[1], int(sys.argv[2])
def answered(end):
    # The client's preface with empty settings; a server's first words are settings, too.
    try:
        end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        return end.recv(9)[3:4] == b"\x04"
    except OSError:
        return False
def secured(certificate):
    # It must have the host in its certificate, and be signed by our authority.
    context = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    with socket.create_connection((host, port), 10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as end:
                return answered(end)
        except OSError:
            return False
with socket.create_connection((host, port), 10) as plain:
    print(json.dumps({"plain": answered(plain), "without a certificate": secured(False), "with it": secured(True)}))
"""
"""Arguments: host, port. Prints each way and whether it was answered, as JSON."""

ENCRYPTED: Final = {"plain": False, "without a certificate": False, "with it": True}
"""What it prints of a port that is encrypted."""
