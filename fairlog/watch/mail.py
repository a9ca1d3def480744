"""Mail about the ends of apps, by a server that the operator names."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from fairlog.watch.alerts import ANSWER_S, Undelivered
from scheduler.model.text import one_line

if TYPE_CHECKING:
    from fairlog.watch.alerts import Ending

SMTP_VARIABLE = "FAIRLOG_ALERTS_SMTP"


class MailServer(NamedTuple):
    """A server that takes mail: host, port, whether TLS is from the beginning on, name and password, and who sends."""

    host: str
    port: int
    tls: bool
    user: str
    password: str
    sender: str

    @classmethod
    def of(cls, url: str, sender: str) -> MailServer:
        """The server of `smtp://[NAME:PASSWORD@]HOST[:PORT]`, or `smtps://…`. Raises: ValueError if it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(url)
        tls = parts.scheme == "smtps"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname, parts.port or (465 if tls else 25), tls, user, password, sender)

    def deliver(self, ending: Ending) -> None:
        """Send it. STARTTLS is used where the server offers it, and needed to log in. Raises: Undelivered."""
        mail = EmailMessage()
        mail["From"], mail["To"] = self.sender, ending.target
        mail["Subject"] = one_line(ending.message["text"], 200)
        mail["Message-ID"] = f"<{ending.id}@{self.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content("".join(f"{name}: {_said(value)}\n" for name, value in ending.message.items()))
        try:
            context = ssl.create_default_context()
            at = self.host, self.port
            with (
                smtplib.SMTP_SSL(*at, timeout=ANSWER_S, context=context)
                if self.tls
                else smtplib.SMTP(*at, timeout=ANSWER_S) as server
            ):
                server.ehlo()
                if not self.tls and server.has_extn("starttls"):
                    server.starttls(context=context)
                elif self.user and not self.tls:
                    raise Undelivered(f"{self.host} offers no STARTTLS, so the password is not sent")
                if self.user:
                    server.login(self.user, self.password)
                server.send_message(mail)
        except (smtplib.SMTPException, OSError) as error:
            raise Undelivered(f"{self.host}: {one_line(str(error), 200) or type(error).__name__}") from error


def _said(value: object) -> str:
    return one_line(str(value), 500)
