"""What is said of a server that is not reached."""

from __future__ import annotations

import ssl

from scheduler.service.addresses import unreached


def test_of_a_certificate_whose_authority_is_not_known_it_is_said_how_to_name_that() -> None:
    refused = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed")
    assert unreached(refused).endswith("; SSL_CERT_FILE names the file of an authority of yours")
    assert unreached(ConnectionRefusedError(111, "Connection refused")) == "[Errno 111] Connection refused"
    assert not unreached(ConnectionError())
