"""Create a self-signed TLS certificate for 127.0.0.1, ::1 and localhost, once per test process."""

import datetime
import functools
import ipaddress
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@functools.cache
def certificate() -> tuple[Path, Path]:
    """Return the PEM files of the certificate, which is its own authority, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    folder = Path(tempfile.mkdtemp(prefix="hookstation-certificate-"))
    chain, secret = folder / "cert.pem", folder / "key.pem"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    chain.write_bytes(_self_signed(key).public_bytes(pem))
    secret.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return chain, secret


def server_context() -> ssl.SSLContext:
    """Return a server's TLS context with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate())
    return context


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver.test")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ("127.0.0.1", "::1")]
    return (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), *hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
