"""TLS to the store: only a server whose certificate names its host, signed by a known authority, is spoken to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import RedisError

from fairlog.local.store import EmbeddedStore
from scheduler.model.errors import UnsuitableStore
from scheduler.store.connection import PASSWORD_FILE, connect, dangers, user_of
from scheduler.store.replication import Replication
from tests.conftest import REDIS_SERVER
from tests.waiting import wait_until

if TYPE_CHECKING:
    from redis import Redis

NOW = datetime.now(UTC)


class Authority(NamedTuple):
    """A certificate authority with its files in a folder."""

    folder: Path
    name: x509.Name
    key: ec.EllipticCurvePrivateKey

    @property
    def file(self) -> Path:
        """Its certificate."""
        return self.folder / "ca.pem"

    def issue(self, host: str, *, days: int = 1) -> tuple[Path, Path]:
        """The files of a certificate and key for that host, which expires after `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            named: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
        made = _certificate(self, subject, key, days).add_extension(
            x509.SubjectAlternativeName([named]), critical=False
        )
        return _written(self.folder / f"{host}.{days}", made.sign(self.key, hashes.SHA256()), key)


def _certificate(
    issuer: Authority, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=3))
        .not_valid_after(NOW + timedelta(days=days))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _written(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    there = Path(f"{path}.pem"), Path(f"{path}.key")
    there[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    there[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return there


def authority(folder: Path) -> Authority:
    """A new authority."""
    folder.mkdir()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    made = Authority(folder, name, ec.generate_private_key(ec.SECP256R1()))
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= dict.fromkeys(("encipher_only", "decipher_only"), False)
    own = _certificate(made, name, made.key, 1).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    own = own.add_extension(
        x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
    )
    _written(folder / "ca", own.sign(made.key, hashes.SHA256()), made.key)
    return made


Serve = Callable[[tuple[Path, Path]], int]
"""Starts the store with TLS and this certificate and key; its port."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(params=["embedded", "redis-server"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serve]:
    """The bundled server has no TLS of its own, so something in front of it speaks TLS."""
    with contextlib.ExitStack() as stack:
        if request.param == "redis-server":
            if REDIS_SERVER is None:
                pytest.skip("no redis-server on the PATH")
            yield lambda files: _redis_server(stack, REDIS_SERVER or "", tmp_path, files)
        else:
            embedded: EmbeddedStore = request.getfixturevalue("_bundled")
            embedded.start()
            yield lambda files: _in_front(stack, embedded.url.removeprefix("unix://"), files)


def _redis_server(stack: contextlib.ExitStack, program: str, folder: Path, files: tuple[Path, Path]) -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    certificate, key = files
    options = {"port": 0, "tls-port": port, "tls-cert-file": certificate, "tls-key-file": key, "tls-auth-clients": "no"}
    options |= {"dir": folder, "save": "", "tls-ca-cert-file": certificate.parent / "ca.pem"}
    command = [program, *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    wait_until(listens, "the server")
    return port


def _in_front(stack: contextlib.ExitStack, path: str, files: tuple[Path, Path]) -> int:
    """Something that speaks TLS and passes what it hears to the Unix socket `path`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = listening.accept()
                with contextlib.suppress(OSError):
                    there = socket.socket(socket.AF_UNIX)
                    stack.callback(there.close)
                    safe = context.wrap_socket(asking, server_side=True)
                    stack.callback(safe.close)
                    there.connect(path)
                    for pair in ((safe, there), (there, safe)):
                        threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    stack.callback(listening.shutdown, socket.SHUT_RDWR)
    port: int = listening.getsockname()[1]
    return port


def _ask(url: str) -> Any:
    with connect(url) as store:
        return store.ping()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_whose_certificate_names_it_is_spoken_to(serve: Serve, ours: Authority, host: str) -> None:
    port = serve(ours.issue(host))
    url = f"rediss://{host}:{port}/0?ssl_ca_certs={ours.file}"
    assert _ask(url)
    with connect(url) as store:
        assert not any("rediss" in danger for danger in dangers(store, url))
    assert _ask(f"rediss://{host}:{port},{host}:1/0?ssl_ca_certs={ours.file}"), "the server that is primary"


def test_any_other_certificate_is_refused(serve: Serve, ours: Authority, tmp_path: Path) -> None:
    others = authority(tmp_path / "others")
    wrong_host, expired = serve(ours.issue("elsewhere.example")), serve(ours.issue("localhost", days=-1))
    right = serve(ours.issue("localhost"))
    cases = {
        f"rediss://localhost:{wrong_host}/0?ssl_ca_certs={ours.file}": "mismatch",
        f"rediss://localhost:{expired}/0?ssl_ca_certs={ours.file}": "expired",
        f"rediss://localhost:{right}/0?ssl_ca_certs={others.file}": "verify failed",
        f"rediss://localhost:{right}/0": "verify failed",
        f"rediss://127.0.0.1:{right}/0?ssl_ca_certs={ours.file}": "mismatch",
    }
    for url, reason in cases.items():
        with pytest.raises(StoreConnectionError, match=reason):
            _ask(url)


def test_a_server_with_tls_is_not_spoken_to_without(serve: Serve, ours: Authority) -> None:
    with pytest.raises(RedisError):
        _ask(f"redis://localhost:{serve(ours.issue('localhost'))}/0")


@pytest.mark.parametrize("scheme", ["rediss://host:1/0", "rediss://a:1,b:2/0", "rediss+sentinel://a:1,b:2/fairlog"])
@pytest.mark.parametrize(
    "option", ["ssl_cert_reqs=none", "ssl_cert_reqs=optional", "ssl_check_hostname=false", "ssl_check_hostname=0"]
)
def test_no_url_turns_the_checks_off(scheme: str, option: str) -> None:
    with pytest.raises(UnsuitableStore, match="certificates and host names are always checked"):
        connect(f"{scheme}?{option}")


def _of(store: Redis) -> dict[str, Any]:
    return dict(store.connection_pool.connection_kwargs)


@pytest.mark.parametrize("url", ["rediss://u:p@a:1/0", "rediss://u:p@a:1,b:2/0", "rediss+sentinel://u:p@a:1,b:2/s"])
def test_every_kind_of_store_is_checked(url: str) -> None:
    with connect(f"{url}?ssl_ca_certs=/ca.pem") as store:
        found = [_of(store)]
        manager = getattr(store.connection_pool, "sentinel_manager", None)
        for server in manager.sentinels if manager else ():
            found.append(_of(server))
            assert issubclass(server.connection_pool.connection_class, SSLConnection)
        assert issubclass(store.connection_pool.connection_class, SSLConnection)
        for each in found:
            assert (each["ssl_cert_reqs"], each["ssl_check_hostname"]) == ("required", True)
            assert each["ssl_ca_certs"] == "/ca.pem"
        assert _of(store)["password"] == "p"
        assert Replication(store)


def test_the_password_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("hush\n")
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "password"))
    given = {"redis://u@h:1/0": "hush", "redis://u:own@h:1/0": "own", "redis://h:1/0": None, "unix:///s": None}
    given |= {"redis+sentinel://u@a:1/s": "hush", "redis://u@a:1,b:2/0": "hush", "redis+sentinel://u:own@a:1/s": "own"}
    for url, password in given.items():
        with connect(url) as store:
            account = _of(store).get("credential_provider")
            found = account.get_credentials() if account else (user_of(store), _of(store).get("password"))
            assert found == ("u" if password else "", password), url
            assert user_of(store) == found[0]
    (tmp_path / "password").unlink()
    with pytest.raises(UnsuitableStore, match="which cannot be read"):
        connect("redis://u@h:1/0")
