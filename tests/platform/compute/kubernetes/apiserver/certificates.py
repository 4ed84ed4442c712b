"""An authority of the tests, and a certificate for 127.0.0.1: the client's TLS is as strict as it is in earnest."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make(folder: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """The authority's certificate, and a file with the server's key and certificate."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)

    def build(subject: x509.Name, public: ec.EllipticCurvePublicKey, is_authority: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    authority = build(authority_name, authority_key.public_key(), True).sign(authority_key, hashes.SHA256())
    own = (
        build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "apiserver")]), key.public_key(), False)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    authority_file, own_file = folder / "authority.pem", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(pem))
    own_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()) + own.public_bytes(pem)
    )
    return authority_file, own_file
