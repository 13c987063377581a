"""Certificates of one pod for the traffic between Ray's processes: `python -m rl_trainer.run.certificates`.

The authority of an attempt is derived from a seed, the same in every pod of the attempt, so that each pod can make what it
needs itself, as soon as it knows its address: nobody signs for others, and nothing has to be sent. Who has the seed, as the
pod's init container has, can sign; who has what it leaves, as Ray has, can not.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rl_api.errors import InvalidConfig, RLTrainError

CA_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"

OWN_ADDRESSES: Final = ("127.0.0.1", "::1", "localhost")
"""By which the processes of a pod may call each other."""

_SHORTEST_SEED: Final = 32
# Pods live as long as their attempt, which may be months, and nobody else trusts the authority. The first day is for clocks
# that are slow.
_BEFORE: Final = timedelta(days=1)
_AFTER: Final = timedelta(days=3650)
_AUTHORITY: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rltrain attempt")])
_POD: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rltrain pod")])
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
# Order of the group of P-256.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True)
class Certificates:
    """What a pod shows and what it believes, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(seed: bytes, addresses: Sequence[str], now: datetime) -> Certificates:
    """Certificates of a pod that is called by these addresses (IP addresses or names), and by others in it by its own.

    Raises:
        InvalidConfig: the seed is too short to be one, or something is no address.
    """
    if len(seed) < _SHORTEST_SEED:
        raise InvalidConfig(f"seed: found {len(seed)} bytes, allowed: {_SHORTEST_SEED} or more")
    names = [_general_name(address) for address in dict.fromkeys((*addresses, *OWN_ADDRESSES))]
    # Of twice as many bits as the order has, so that no number is more likely than another.
    signer = ec.derive_private_key(
        int.from_bytes(hashlib.sha512(seed).digest(), "big") % (_ORDER - 1) + 1, ec.SECP256R1()
    )
    own = ec.generate_private_key(ec.SECP256R1())
    authority = (
        _builder(_AUTHORITY, signer.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signer, hashes.SHA256())
    )
    certificate = (
        _builder(_POD, own.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        # Every process of Ray's calls and is called.
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificates(authority.public_bytes(pem), certificate.public_bytes(pem), key)


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        # Such as a variable of Kubernetes' that nobody has set.
        if not _NAME.fullmatch(address):
            raise InvalidConfig(f"address: found {address!r}, allowed: an IP address or a name") from None
        return x509.DNSName(address)


def main(arguments: Sequence[str] | None = None) -> int:
    """SEED_FILE FOLDER ADDRESS...: writes a pod's certificates into a folder; returns the exit status.

    Addresses may be several in one argument, with commas, as Kubernetes tells a pod its own.
    """
    seed, folder, *addresses = sys.argv[1:] if arguments is None else arguments
    try:
        made = make_certificates(
            _read(Path(seed)), [one for each in addresses for one in each.split(",")], datetime.now(UTC)
        )
        _write(Path(folder), made)
    except RLTrainError as error:
        print(f"rltrain: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"seed: {file} cannot be read ({error.strerror})") from None


def _write(folder: Path, made: Certificates) -> None:
    """Those of an earlier start are replaced: the pod may have another address now."""
    parts = {CA_FILE: made.authority, CERTIFICATE_FILE: made.certificate, KEY_FILE: made.key}
    for name, text in parts.items():
        file = folder / name
        try:
            file.touch(mode=0o600)
            file.write_bytes(text)
        except OSError as error:
            raise InvalidConfig(f"certificates: {file} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
