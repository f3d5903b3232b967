"""E-mail over SMTP, encrypted unless configuration says otherwise."""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._tls import context
from kvwitness.audit.alerts.sinks._wording import headline, lines
from kvwitness.audit.alerts.sinks.model import Refused, SinkKind, Unreachable

_WAIT_S = 15


class Email:
    """One list of recipients. Messages of one episode make one thread; a repetition has the same Message-ID."""

    def __init__(
        self,
        host: str,
        port: int,
        encryption: str,
        sender: str,
        to: tuple[str, ...],
        login: tuple[str, str] | None,
        context: ssl.SSLContext,
    ) -> None:
        self._host, self._port, self._encryption = host, port, encryption
        self._sender, self._to, self._login, self._context = sender, to, login, context

    def deliver(self, notice: Notice) -> None:
        """Send one message."""
        try:
            smtp = self._connected()
            try:
                if self._encryption == "starttls":
                    smtp.starttls(context=self._context)
                if self._login is not None:
                    smtp.login(*self._login)
                smtp.send_message(self._message(notice))
                with suppress(smtplib.SMTPException, OSError):  # it was taken; how the farewell goes changes nothing
                    smtp.quit()
            finally:
                smtp.close()
        except smtplib.SMTPDataError as exc:
            told = f"{self._host} answered {exc.smtp_code}"
            raise (Unreachable if exc.smtp_code < 500 else Refused)(told) from exc
        except smtplib.SMTPResponseException as exc:  # login or sender: that can be put right, and the message waits
            raise Unreachable(f"{self._host} answered {exc.smtp_code}") from exc
        except smtplib.SMTPRecipientsRefused as exc:
            codes = sorted({code for code, _ in exc.recipients.values()})
            raise Unreachable(f"{self._host} takes none of the recipients ({', '.join(map(str, codes))})") from exc
        except (smtplib.SMTPException, OSError) as exc:
            raise Unreachable(f"{self._host}:{self._port}: {type(exc).__name__}") from exc

    def _connected(self) -> smtplib.SMTP:
        if self._encryption == "tls":
            return smtplib.SMTP_SSL(self._host, self._port, timeout=_WAIT_S, context=self._context)
        return smtplib.SMTP(self._host, self._port, timeout=_WAIT_S)

    def _message(self, notice: Notice) -> EmailMessage:
        message = EmailMessage()
        message["From"], message["To"] = self._sender, ", ".join(self._to)
        message["Subject"] = headline(notice).replace("\r", " ").replace("\n", " ")
        message["Date"] = formatdate(notice.said_ns / SECOND_NS)
        message["Message-ID"] = f"<{_name(notice.key)}@kvwitness>"
        if notice.version > 1:
            message["References"] = f"<{_name(f'{notice.alert}/{notice.episode}/1')}@kvwitness>"
        message["Auto-Submitted"] = "auto-generated"
        message["X-Kvwitness-Key"] = notice.key
        message.set_content("\n".join(lines(notice)) + "\n")
        return message


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def make(section: Section) -> Email:
    """Keys: `host`, `port`, `encryption` (`tls`, `starttls`, `none`), `from`, `to`, `user`, `password`, `ca_file`."""
    encryption = section.choice("encryption", ("tls", "starttls", "none"), "starttls")
    user = section.text("user", None)
    if user is not None and encryption == "none":
        raise section.error("user", "would send a password without encryption")
    return Email(
        host=section.text("host"),
        port=section.whole("port", 465 if encryption == "tls" else 587, low=1, high=65535),
        encryption=encryption,
        sender=section.text("from"),
        to=section.texts("to"),
        login=None if user is None else (user, section.secret("password")),
        context=context(section),
    )


SINK = SinkKind("email", "e-mail over SMTP with TLS", make)
