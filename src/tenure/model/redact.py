"""Remove secrets from text that is stored or shown: the one redactor for errors, logs and agent output.

A secret is found in three ways:

    by value   a known secret in any form: as it is, in JSON, in a URL, in hex, in base64 at any offset
    by key     `password=…`, `"api_key": "…"`, `Authorization: …` to the end of the line, `--token …`
    by shape   token formats with a known prefix (AWS, GitHub, Slack, …), userinfo in URLs, private keys

`clean` is for errors that a worker stores; it also knows the values of secret-named environment variables and the
passwords in database URLs. All patterns have bounds, so the time grows linearly with the text: an error may hold text
that an attacker wrote.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, quote_plus, unquote, urlsplit

from tenure.model.policy import Limits

REDACTED = "[redacted]"
DEFAULT_KEYS = frozenset(
    {
        "access_key",
        "account_key",
        "api_key",
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "client_secret",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "encryption_key",
        "jwt",
        "master_key",
        "passphrase",
        "passwd",
        "password",
        "private_key",
        "pwd",
        "secret",
        "secrets",
        "set_cookie",
        "shared_access_key",
        "signature",
        "signing_key",
        "token",
    }
)
ERROR_CHARACTERS = 16 * 1024
MIN_VALUE = 4  # a shorter value would take half of every text along

_MIN_BASE64 = 8
_MAX_DEPTH = 64
_KEY_CHARACTERS = 200  # of a longer key only the first are looked at
_PLAIN = {"null", "none", "true", "false", REDACTED, REDACTED[:-1]}  # values after a key that are no secret
_TOO_COMMON = _PLAIN | {"postgres", "postgresql", "password", "changeme", "example", "secret", "localhost"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # PostgreSQL holds neither NUL nor half a character

STARTS_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
ENDS_PRIVATE_KEY = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY = re.compile(rf"{STARTS_PRIVATE_KEY.pattern}.*?(?:{ENDS_PRIVATE_KEY.pattern}|\Z)", re.DOTALL)
_KEY_WITHOUT_BEGIN = re.compile(rf"\A[A-Za-z0-9+/=\s\\]{{0,20000}}?{ENDS_PRIVATE_KEY.pattern}")

_WEB_USER = re.compile(r"(?P<keep>https?://)(?![^\s/?#@]{0,1024}[/?#])[^\s\"'<>@]{1,1024}(?=@)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<keep>://[^\s/:@?#]{0,256}:)(?!\d{1,5}(?:[/?#\s\"',;)]|\Z))[^\s\"'<>]{1,1024}(?=@)")

# Headers whose whole value is secret, to the end of the line or to the quote that stands before the name.
_HEADER = re.compile(
    r"(?P<open>[\"'`]?)(?<![A-Za-z0-9])(?P<head>(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,30}(?:api-?key|token|secret"
    r"|signature|auth)|api-?key|private-token|job-token|deploy-token)(?P<colon>[ \t]{0,3}:[ \t]{0,3})"
    r"(?P<scheme>(?:bearer|basic|digest|token|negotiate|apikey)[ \t]{1,3})?(?P<value>[^\s\"'][^\r\n]{0,16383})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<keep>(?:bearer|basic)[ \t]{1,3})(?P<value>[A-Za-z0-9._~+/=-]{8,4096})", re.IGNORECASE)
_IN_QUERY = re.compile(r"(?P<keep>[?&](?:sig|key|code)=)[^\s&\"'#]{6,2048}", re.IGNORECASE)
# `curl -u name:password`, also as a list of arguments; not `docker run -u 1000:1000`.
_USER_OPTION = re.compile(
    r"""(?P<keep>(?<![\w-])(?:-u|--(?:proxy-)?user)(?:["'],?\s{0,3}["']|=|[ \t]{1,3}["']?)[^\s"',:=]{1,256}:)"""
    r"""(?!\d{1,10}(?:[\s"',\]]|\Z))[^\s"',\]]{1,1024}"""
)
_IN_XML = re.compile(
    r"(?P<keep><(?P<tag>[a-z_:]{0,30}(?:password|passwd|secret|token|apikey|api_key|privatekey))>)[^<]{1,2048}(?=</)",
    re.IGNORECASE,
)

# (text that every match holds, pattern). The text is looked for first: that is far quicker than the pattern.
_PREFIXED = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("AKIA", r"AKIA[A-Z0-9]{16}"),  # AWS access keys
        ("ASIA", r"ASIA[A-Z0-9]{16}"),
        ("ABIA", r"ABIA[A-Z0-9]{16}"),
        ("ACCA", r"ACCA[A-Z0-9]{16}"),
        ("ABSK", r"ABSK[A-Za-z0-9+/]{60,200}={0,2}"),  # AWS Bedrock
        ("bedrock-api-key-", r"bedrock-api-key-[A-Za-z0-9+/=_-]{20,2048}"),
        ("LTAI", r"LTAI[A-Za-z0-9]{16,24}"),  # Alibaba
        ("AKID", r"AKID[A-Za-z0-9]{28,36}"),  # Tencent
        ("gh", r"gh[pousr]_[A-Za-z0-9]{20,255}"),  # GitHub
        ("github_pat_", r"github_pat_\w{20,255}"),
        ("gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[\w.-]{20,300}"),  # GitLab
        ("GR1348941", r"GR1348941[\w-]{20,50}"),
        ("xox", r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,400}"),  # Slack
        ("xapp-", r"xapp-\d-[A-Za-z0-9-]{10,400}"),
        ("hooks.slack.com", r"(?P<keep>hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/+-]{20,200}"),
        ("k_", r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,250}"),  # Stripe
        ("whsec_", r"whsec_[A-Za-z0-9+/=]{16,200}"),
        ("AIza", r"AIza[\w-]{30,50}"),  # Google
        ("ya29.", r"ya29\.[\w.-]{20,2048}"),
        ("GOCSPX-", r"GOCSPX-[\w-]{20,60}"),
        ("1//0", r"1//0[\w-]{30,200}"),
        ("sk-", r"sk-[A-Za-z0-9_-]{20,300}"),  # OpenAI (also sk-proj-, sk-svcacct-), Anthropic (sk-ant-), others
        ("gsk_", r"gsk_[A-Za-z0-9]{20,100}"),  # Groq
        ("xai-", r"xai-[A-Za-z0-9]{20,200}"),
        ("pplx-", r"pplx-[A-Za-z0-9]{20,100}"),  # Perplexity
        ("r8_", r"r8_[A-Za-z0-9]{20,100}"),  # Replicate
        ("hf_", r"hf_[A-Za-z0-9]{20,100}"),  # Hugging Face
        ("npm_", r"npm_[A-Za-z0-9]{30,100}"),
        ("pypi-", r"pypi-[\w-]{30,1000}"),
        ("rubygems_", r"rubygems_[a-f0-9]{40,64}"),
        ("CLOJARS_", r"CLOJARS_[a-z0-9]{40,80}"),
        ("dckr_", r"dckr_(?:pat|oat)_[\w-]{20,100}"),  # Docker
        ("SK", r"SK[0-9a-f]{32}"),  # Twilio
        ("AC", r"AC[0-9a-f]{32}"),
        ("SG.", r"SG\.[\w-]{16,40}\.[\w-]{16,80}"),  # SendGrid
        ("key-", r"key-[0-9a-f]{32}"),  # Mailgun
        ("-us", r"[0-9a-f]{32}-us\d{1,2}"),  # Mailchimp
        ("xkeysib-", r"xkeysib-[a-f0-9]{40,80}-[A-Za-z0-9]{10,30}"),  # Brevo
        (":AA", r"\d{8,10}:AA[\w-]{30,40}"),  # Telegram
        ("discord", r"(?P<keep>discord(?:app)?\.com/api/webhooks/)[\w/-]{20,200}"),
        (".", r"[MNO][A-Za-z\d_-]{23,28}\.[\w-]{6}\.[\w-]{27,45}"),  # Discord
        ("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),  # Shopify
        ("sq0", r"sq0[a-z]{3}-[\w-]{20,60}"),  # Square
        ("EAAA", r"EAAA[\w-]{50,80}"),
        ("EAA", r"EAA[MC][a-zA-Z0-9]{80,300}"),  # Facebook
        ("do", r"do[opr]_v1_[a-f0-9]{64}"),  # DigitalOcean
        ("dapi", r"dapi[a-f0-9]{32}(?:-\d)?"),  # Databricks
        ("hv", r"hv[sbr]\.[\w-]{20,300}"),  # HashiCorp Vault
        ("atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,80}"),  # Terraform Cloud
        ("dp.", r"dp\.(?:pt|st|sa|ct|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,50}"),  # Doppler
        ("lin_", r"lin_(?:api|oauth)_[A-Za-z0-9]{30,80}"),  # Linear
        ("ntn_", r"ntn_[A-Za-z0-9]{40,60}"),  # Notion
        ("secret_", r"secret_[A-Za-z0-9]{40,50}"),
        ("fig", r"fig[dour]_[\w-]{30,60}"),  # Figma
        ("PMAK-", r"PMAK-[a-fA-F0-9]{24}-[a-fA-F0-9]{34}"),  # Postman
        ("NR", r"NR(?:AK|II|JS|AA)-[A-Za-z0-9-]{19,60}"),  # New Relic
        ("gls", r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),  # Grafana
        ("glc_", r"glc_[A-Za-z0-9+/]{32,400}={0,2}"),
        ("sntry", r"sntry[su]_[A-Za-z0-9+/=_-]{40,400}"),  # Sentry
        ("pscale_", r"pscale_(?:tkn|pw|oauth)_[\w=.-]{30,64}"),  # PlanetScale
        ("pnu_", r"pnu_[A-Za-z0-9]{36}"),  # Prefect
        ("pul-", r"pul-[a-f0-9]{40}"),  # Pulumi
        ("FlyV1", r"FlyV1 [\w+/=,-]{40,4096}"),
        ("fo1_", r"fo1_[\w-]{40,60}"),
        ("HRKU-", r"HRKU-[\w-]{30,80}"),  # Heroku
        ("v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,200}"),  # Cloudflare
        ("AT", r"AT(?:ATT3|CTT3|BB)[A-Za-z0-9_=-]{20,250}"),  # Atlassian
        ("pat", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),  # Airtable
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,70}"),
        ("sb", r"sb(?:p_[a-f0-9]{40}|_secret_[\w-]{20,60})"),  # Supabase
        ("nfp_", r"nfp_[A-Za-z0-9]{36,40}"),  # Netlify
        ("Q~", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),  # Azure client secrets
        ("dt0", r"dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # Dynatrace
        ("EZ", r"EZ[AT]K[A-Za-z0-9]{54}"),  # EasyPost
        ("aio_", r"aio_[A-Za-z0-9]{28}"),  # Adafruit
        ("CFPAT-", r"CFPAT-[\w-]{43}"),  # Contentful
        ("sgp_", r"sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}"),  # Sourcegraph
        ("shippo_", r"shippo_(?:live|test)_[a-f0-9]{40}"),
        ("sha256~", r"sha256~[\w-]{43}"),  # OpenShift
        ("ops_eyJ", r"ops_eyJ[A-Za-z0-9+/=_-]{100,4096}"),  # 1Password
        ("tnr_", r"tnr_[A-Za-z0-9]{1,64}_[A-Za-z0-9]{16,64}(?:_[A-Za-z0-9]{1,16})?"),  # Tenure
        ("eyJ", r"eyJ[\w-]{10,512}\.eyJ[\w-]{10,8192}\.?[\w-]{0,2048}"),  # JSON web tokens
    )
)


class Redactor:
    """Removes secrets from text and JSON-like data. Immutable; threads may share one.

    Args:
        values: Secrets as they are. Those under four characters are ignored.
        keys: Names under which a value is secret, in any spelling: api_key also means apiKey, API-KEY, x_api_key.
        shapes: Whether known token formats, secret headers and userinfo in URLs are removed too.
    """

    def __init__(self, values: Iterable[str] = (), keys: Iterable[str] = DEFAULT_KEYS, *, shapes: bool = True) -> None:
        forms = {form for value in values for part in _parts(value) for form in _forms(part)}
        self.longest = max(map(len, forms), default=0)
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        named = list(keys)
        self._keys = frozenset(tuple(_words(key)) for key in named)
        self._most_words = max(map(len, self._keys), default=0)
        self._assignments = _assignments(named)
        self._options = _options(named)
        self.shapes = shapes

    def text(self, text: str) -> str:
        """The text without its secrets."""
        if self._values:
            text = self._values.sub(REDACTED, text)
        if self.shapes:
            text = _hide_shapes(text)
        if self._assignments:
            text = self._assignments.sub(_hide_assigned, text)
        if self._options and "--" in text:
            text = self._options.sub(_hide_option, text)
        return text

    def data(self, value: object) -> object:
        """A copy of JSON-like data without its secrets: in strings, under keys, and in the keys themselves."""
        return self._data(value, 0)

    def bounded(self, text: str, limit: int = ERROR_CHARACTERS) -> str:
        """The text without its secrets and no longer than `limit`: the start and, mostly, the end are kept.

        Costs no more for a text of a hundred megabytes: what is cut is not looked at, and no half of a secret
        stays at the cut.
        """
        margin = max(self.longest, 512)
        if len(text) <= limit + 2 * margin:
            shown = self.text(text)
            return shown if len(shown) <= limit else _cut(shown, shown, limit, len(shown))
        head = self.text(text[: limit + 2 * margin])
        tail = self.text(text[-(limit + 2 * margin) :])
        # Only the last (first) `margin` characters can hold a part of a secret that the slice itself cut in two.
        return _cut(head[:-margin], tail[margin:], limit, len(text))

    def is_secret_key(self, key: str) -> bool:
        """Whether the value under this key is secret. Only the key's first 200 characters count."""
        words = _words(key)
        if len(words) > 1 and words[-1] == "pass":  # DB_PASS; alone it is a count of tests
            return bool(self._keys)
        return any(
            tuple(words[start : start + length]) in self._keys
            for start in range(len(words))
            for length in range(1, self._most_words + 1)
        )

    def _data(self, value: object, depth: int) -> object:
        if depth > _MAX_DEPTH:
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode(errors="replace"))
        if isinstance(value, Mapping):
            return {self._key(key): self._entry(key, entry, depth) for key, entry in value.items()}
        if isinstance(value, Sequence | set | frozenset):
            return [self._data(entry, depth + 1) for entry in value]
        return value

    def _key(self, key: object) -> object:
        return self.text(key) if isinstance(key, str) else key

    def _entry(self, key: object, entry: object, depth: int) -> object:
        """Flags stay, and so does a number under «token», which counts or is our fence; whatever else is hidden."""
        if not isinstance(key, str) or not self.is_secret_key(key) or entry is None or isinstance(entry, bool):
            return self._data(entry, depth + 1)
        if isinstance(entry, int | float) and "token" in _words(key):
            return entry
        return REDACTED


class _Process:
    """The redactor of this process: knows the secrets in its environment, and those that `hide` was given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hidden: frozenset[str] = frozenset()
        self._seen: tuple[dict[str, str], frozenset[str]] | None = None
        self._redactor: Redactor | None = None

    def hide(self, values: Iterable[str]) -> None:
        with self._lock:
            self._hidden |= {value for value in values if len(value) >= MIN_VALUE}

    def redactor(self) -> Redactor:
        environment = dict(os.environ)
        with self._lock:
            now = (environment, self._hidden)
            if self._redactor is None or self._seen != now:
                self._redactor = Redactor([*self._hidden, *secrets_in_environment(environment)])
                self._seen = now
            return self._redactor


_PROCESS = _Process()


def clean(text: str, limit: int = Limits().error_chars) -> str:
    """An error as it is stored: without secrets, of bounded length, and of characters that both engines hold.

    Also removes the values of secret-named environment variables, of passwords in URLs there, and what `hide` was
    given.
    """
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", process_redactor().bounded(text, limit))


def process_redactor() -> Redactor:
    """The redactor behind `clean`; follows changes of the environment."""
    return _PROCESS.redactor()


def hide(*values: str) -> None:
    """Add values that `clean` removes from now on. Of a URL with a password, only the password."""
    _PROCESS.hide(part for value in values for part in (_passwords_in_url(value) if "://" in value else [value]))


def secrets_in_environment(environment: Mapping[str, str]) -> list[str]:
    """Values of secret-named variables, and passwords in variables that hold a URL."""
    names = Redactor()
    found: list[str] = []
    for name, value in environment.items():
        if "://" in value:
            found += _passwords_in_url(value)
        elif names.is_secret_key(name) and not value.startswith("/"):  # a path, as in SSH_AUTH_SOCK
            found.append(value)
    return [value for value in found if len(value) >= MIN_VALUE and value.lower() not in _TOO_COMMON]


def _passwords_in_url(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        given = [parts.password, *re.findall(r"(?:^|&)(?:password|token|secret)=([^&]{1,1024})", parts.query)]
    except ValueError:
        return []
    return [form for value in given if value for form in {value, unquote(value)}]


def _parts(value: str) -> list[str]:
    """The value, and the lines of one that has several: logs show a private key line by line."""
    lines = [line.strip() for line in value.splitlines()]
    return [part for part in (value, *(line for line in lines if len(line) >= _MIN_BASE64)) if len(part) >= MIN_VALUE]


def _forms(value: str) -> set[str]:
    raw = value.encode(errors="surrogateescape")
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper()}
    for offset in range(3):
        forms |= _base64_at(raw, offset)
    return {form for form in forms if len(form) >= MIN_VALUE}


def _base64_at(raw: bytes, offset: int) -> set[str]:
    """What base64 makes of the value when `offset` (mod 3) other bytes stand before it, whatever they are.

    The first and last characters also depend on the neighbours, so they are left out.
    """
    encoded = base64.b64encode(b"\0" * offset + raw)
    start = (offset * 8 + 5) // 6
    end = (offset + len(raw)) * 8 // 6
    core = encoded[start:end].decode()
    if len(core) < _MIN_BASE64:
        return set()
    return {core, core.replace("+", "-").replace("/", "_")}


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key[:_KEY_CHARACTERS])]


def _names(keys: Iterable[str]) -> list[str]:
    """Patterns for the keys in running text, the longest first."""
    found = {"[_-]?".join(_words(key)) for key in keys if _words(key)}
    return sorted(found, key=lambda name: (-len(name), name))


def _assignments(keys: Iterable[str]) -> re.Pattern[str] | None:
    """`password=…`, `"api_key": "…"`, `token => …`, `DB_PASS=…` in running text."""
    names = _names(keys)
    if not names:
        return None
    first = "".join(sorted({name[0] for name in names} | {"_"}))
    value = r"""(?P<quote>\\?["']?)(?P<value>(?<=")(?:[^"\\]|\\.)+?|(?<=')(?:[^'\\]|\\.)+?|[^\s"',;&})\]]+)(?P=quote)"""
    return re.compile(
        rf"(?P<head>(?=[{first}])(?:{'|'.join(names)}|_pass)(?:[_-]?(?:key|value|string))?"
        rf"""[\\]?["']?\s{{0,3}}(?::=|=>|[:=])\s{{0,3}}(?:(?:bearer|basic)\s+)?){value}""",
        re.IGNORECASE,
    )


def _hide_assigned(found: re.Match[str]) -> str:
    head, value = found["head"], found["value"]
    if value.lower() in _PLAIN or (value.isdigit() and "token" in head.lower()):
        return found[0]
    return head + found["quote"] + REDACTED + found["quote"]


def _options(keys: Iterable[str]) -> re.Pattern[str] | None:
    """`--password …` in a command line, also as a list of arguments."""
    names = _names(keys)
    if not names:
        return None
    return re.compile(
        rf"""(?P<head>--[a-z0-9]{{0,20}}[_-]?(?:{"|".join(names)})(?:["'],?\s{{0,3}}["']|\s{{1,3}}))"""
        r"""(?P<value>[^\s"',\]-][^\s"',\]]{3,})""",
        re.IGNORECASE,
    )


def _hide_option(found: re.Match[str]) -> str:
    is_prose = found["value"].isalpha() and found["value"].islower() and len(found["value"]) < 12
    return found[0] if is_prose or found["value"] in _PLAIN else found["head"] + REDACTED


def _hide_shapes(text: str) -> str:
    if "-----" in text:
        text = _KEY_WITHOUT_BEGIN.sub(REDACTED, _PRIVATE_KEY.sub(REDACTED, text))
    if "://" in text:
        text = _URL_PASSWORD.sub(_hide_kept, _WEB_USER.sub(_hide_kept, text))
    for part, shape in _PREFIXED:
        if part in text:
            text = shape.sub(_hide_prefixed, text)
    if ":" in text:
        text = _HEADER.sub(_hide_header, text)
    if "-u" in text or "user" in text:
        text = _USER_OPTION.sub(_hide_kept, text)
    if "=" in text:
        text = _IN_QUERY.sub(_hide_kept, text)
    if "</" in text:
        text = _IN_XML.sub(_hide_kept, text)
    return _BEARER.sub(_hide_bearer, text)


def _hide_kept(found: re.Match[str]) -> str:
    return found["keep"] + REDACTED


def _hide_prefixed(found: re.Match[str]) -> str:
    """Hide it, unless it is the end of a longer word, as in «task-…»."""
    before = found.string[found.start() - 1 : found.start()]
    return found[0] if before.isalnum() else found.groupdict().get("keep", "") + REDACTED


def _hide_header(found: re.Match[str]) -> str:
    value, rest, mark = found["value"], "", found["open"]
    if mark and mark in value:  # -H 'Authorization: …' https://…
        value, rest = value.split(mark, 1)
        rest = mark + rest
    if value.strip().lower() in _PLAIN:
        return found[0]
    return f"{mark}{found['head']}{found['colon']}{found['scheme'] or ''}{REDACTED}{rest}"


def _hide_bearer(found: re.Match[str]) -> str:
    """Hide what follows «Bearer», unless it is a word of prose."""
    value = found["value"]
    is_prose = value.rstrip(".").isalpha() and value[1:] == value[1:].lower() and len(value) < 24
    return found[0] if is_prose else found["keep"] + REDACTED


def _cut(head: str, tail: str, limit: int, total: int) -> str:
    note = f"\n… [{total - limit} characters left out] …\n"
    room = max(0, limit - len(note))
    first = room // 4
    return head[:first] + note[: limit - room] + (tail[-(room - first) :] if room > first else "")
