from __future__ import annotations

import contextlib
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rl_api.errors import InvalidConfig
from rl_trainer.run.certificates import OWN_ADDRESSES, main, make_certificates

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SEED, OTHER = b"a" * 64, b"b" * 64
HEAD, WORKER = "10.0.0.7", "10.0.0.8"


def pod(folder: Path, seed: bytes, *addresses: str) -> Path:
    """A folder as the container that runs first leaves it."""
    folder.mkdir()
    (folder / "seed").write_bytes(seed)
    assert main([str(folder / "seed"), str(folder), *addresses]) == 0
    return folder


def context(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    """What a process of Ray does with the files: each side shows its certificate, and wants the other's."""
    made = ssl.create_default_context(purpose, cafile=folder / "ca.crt")
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return made


def talk(server: Path, client: Path, called: str) -> None:
    """A handshake of two pods and a byte each way. Raises SSLError where one does not believe the other."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    asked = context(server, ssl.Purpose.CLIENT_AUTH).wrap_bio(ends[0], ends[1], server_side=True)
    asks = context(client, ssl.Purpose.SERVER_AUTH).wrap_bio(ends[2], ends[3], server_hostname=called)

    def carry() -> None:
        ends[0].write(ends[3].read())
        ends[2].write(ends[1].read())

    for _ in range(4):
        for side in (asks, asked):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            carry()
    for one, other in ((asks, asked), (asked, asks)):
        one.write(b"x")
        carry()
        assert other.read(1) == b"x"


class TestPods:
    def test_pods_of_an_attempt_believe_each_other(self, tmp_path: Path) -> None:
        head = pod(tmp_path / "head", SEED, f"{HEAD},fd00::7", "sums-head-svc.team-a.svc.cluster.local")
        worker = pod(tmp_path / "worker", SEED, WORKER)
        assert (head / "ca.crt").read_bytes() != (worker / "ca.crt").read_bytes(), "made by each for itself"
        for called in (HEAD, "fd00::7", "sums-head-svc.team-a.svc.cluster.local", *OWN_ADDRESSES):
            talk(head, worker, called)
        talk(worker, head, WORKER)

    def test_nobody_passes_for_a_pod_that_it_is_not(self, tmp_path: Path) -> None:
        head, worker = pod(tmp_path / "head", SEED, HEAD), pod(tmp_path / "worker", SEED, WORKER)
        with pytest.raises(ssl.SSLError, match="IP address mismatch"):
            talk(worker, head, HEAD)

    def test_pods_of_another_attempt_are_not_believed(self, tmp_path: Path) -> None:
        head, stranger = pod(tmp_path / "head", SEED, HEAD), pod(tmp_path / "stranger", OTHER, HEAD)
        for server, client in ((head, stranger), (stranger, head)):
            with pytest.raises(ssl.SSLError, match="certificate verify failed"):
                talk(server, client, HEAD)

    def test_a_pod_cannot_sign_for_others(self, tmp_path: Path) -> None:
        folder = pod(tmp_path / "worker", SEED, WORKER)
        own = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
        assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not own.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        assert authority.public_key() != own.public_key()

    def test_clocks_may_differ_and_attempts_may_be_long(self) -> None:
        made = make_certificates(SEED, [HEAD], NOW)
        for pem in (made.authority, made.certificate):
            found = x509.load_pem_x509_certificate(pem)
            assert found.not_valid_before_utc <= NOW - timedelta(hours=1)
            assert found.not_valid_after_utc >= NOW + timedelta(days=3000)

    def test_another_start_makes_others(self, tmp_path: Path) -> None:
        folder = pod(tmp_path / "head", SEED, HEAD)
        before = (folder / "tls.key").read_bytes()
        assert main([str(folder / "seed"), str(folder), WORKER]) == 0
        assert (folder / "tls.key").read_bytes() != before
        with pytest.raises(ssl.SSLError, match="IP address mismatch"):
            talk(folder, folder, HEAD)
        talk(folder, folder, WORKER)

    def test_the_key_is_the_users_alone(self, tmp_path: Path) -> None:
        folder = pod(tmp_path / "head", SEED, HEAD)
        assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600


class TestMistakes:
    def test_a_variable_that_nobody_has_set_is_no_address(self) -> None:
        with pytest.raises(
            InvalidConfig, match=r"^address: found '\$\(FQ_RAY_IP\)', allowed: an IP address or a name$"
        ):
            make_certificates(SEED, ["$(FQ_RAY_IP)"], NOW)

    def test_a_seed_that_anybody_can_guess(self) -> None:
        with pytest.raises(InvalidConfig, match=r"^seed: found 5 bytes, allowed: 32 or more$"):
            make_certificates(b"guess", [HEAD], NOW)

    def test_files_that_are_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        seed = tmp_path / "seed"
        assert main([str(seed), str(tmp_path), HEAD]) == 2
        assert (
            capsys.readouterr().err == f"rltrain: seed: {seed} cannot be read (No such file or directory)\n"
        )
        seed.write_bytes(SEED)
        nowhere = tmp_path / "nowhere"
        assert main([str(seed), str(nowhere), HEAD]) == 2
        told = f"rltrain: certificates: {nowhere}/ca.crt cannot be written (No such file or directory)\n"
        assert capsys.readouterr().err == told
