"""The keys of one app's connections: a certificate authority of its own, which signs one certificate and is forgotten.

Both ends of a connection show that certificate and accept no other, so they are processes of the app and its owner.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEFORE, _AFTER = timedelta(days=1), timedelta(days=3650)
"""From and until when the certificates hold: clocks may disagree, and an app may run for years."""


class AppKeys(NamedTuple):
    """The authority's certificate, and the certificate and the private key of every process of the app, as PEM."""

    authority: str
    certificate: str
    key: str


def draw_keys(app: str) -> AppKeys:
    """New keys for the app."""
    signing, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {app}"[:64])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, app[:64])])
    authority = (
        _about(issuer, issuer, signing.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _about(subject, issuer, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return AppKeys(*(each.decode() for each in (_pem(authority), _pem(certificate), key)))


def _about(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
