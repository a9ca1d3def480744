"""Whom an app's end is told to, and the places that an operator allows for that (I9).

A target is a URL or an address of mail. Its *place* is what of it decides whether it is allowed, and is public: scheme,
host and port of a URL, as `https://hooks.example.org`, or `@` and the domain of an address. The rest may be a secret.
"""

from __future__ import annotations

import re

from scheduler.model.errors import InvalidCommand, InvalidSetting

MOST_CHARACTERS = 2048
MOST_PLACES = 100
_HOST = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_URL = re.compile(rf"(https?)://({_HOST})(?::([1-9][0-9]{{0,4}}))?((?:[/?][\x21-\x7e]*)?)", re.IGNORECASE | re.ASCII)
_MAIL = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@({_HOST})", re.IGNORECASE | re.ASCII)
_DOMAIN = re.compile(rf"@({_HOST})", re.IGNORECASE | re.ASCII)
_USUAL = {"http": "80", "https": "443"}


def place_of(target: str) -> str:
    """The place of the target. Raises: InvalidCommand if it is neither a URL nor an address of mail."""
    if len(target) <= MOST_CHARACTERS:
        if (url := _URL.fullmatch(target)) is not None:
            return _origin(url)
        if (mail := _MAIL.fullmatch(target)) is not None:
            return f"@{mail[1].lower()}"
    raise InvalidCommand(
        "whom the end of an app is told to is a URL like https://HOST/PATH, without a name and a password in it, or an "
        f"address of mail, in at most {MOST_CHARACTERS} characters; it is not {target[:40]!r}"
    )


def is_mail(target: str) -> bool:
    """Whether the target is an address of mail."""
    return _URL.fullmatch(target) is None


def url_at(place: str, target: str) -> str:
    """The URL, of which the place is that, so that whoever asks it can take nothing else for its host."""
    url = _URL.fullmatch(target)
    return place if url is None else f"{place}{url[4] or '/'}"


def places_of(setting: str) -> list[str]:
    """The places that the setting `notify_targets` allows."""
    return setting.split()


def check_places(setting: str) -> None:
    """Raises: InvalidSetting unless each word is a place, written as `place_of` has it."""
    places = places_of(setting)
    if len(places) > MOST_PLACES:
        raise InvalidSetting(f"notify_targets can have at most {MOST_PLACES} places, not {len(places)}")
    for place in places:
        url, domain = _URL.fullmatch(place), _DOMAIN.fullmatch(place)
        if (url is None or url[4] or _origin(url) != place) and (domain is None or place != place.lower()):
            raise InvalidSetting(
                "notify_targets are places like https://hooks.example.org, http://10.0.0.7:8080 or @example.org, in "
                f"lower case, without a path and the usual port, separated by blanks; {place[:60]!r} is none"
            )


def check_allowed(setting: str, place: str) -> None:
    """Raises: InvalidCommand unless the place is one of those that the setting allows."""
    allowed = places_of(setting)
    if place not in allowed:
        raise InvalidCommand(
            f"nobody at {place[:80]} may be told of the end of an app: an operator allows places in the setting "
            f"notify_targets, which are now {', '.join(allowed) or 'none'}"
        )


def _origin(url: re.Match[str]) -> str:
    scheme, host, port = url[1].lower(), url[2].lower(), url[3]
    return f"{scheme}://{host}" if port in (None, _USUAL[scheme]) else f"{scheme}://{host}:{port}"
