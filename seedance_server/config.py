"""Every setting and every limit of the server, in one frozen value that is validated once.

The fields stand in five parts, by what they are about. Each carries its help text, which for a limit is its
reason, its default and how to read it from text; the command line, the environment and the file are derived
from that, so no setting can lack one. A `Config` that exists is usable: contradictions are refused here,
never met later.

It must not know where a value came from.
"""

from __future__ import annotations

import re

import attrs
from attrs import frozen

from seedance_server.delivery_settings import DeliverySettings
from seedance_server.engine_settings import EngineSettings
from seedance_server.errors import ConfigError
from seedance_server.limit_settings import LimitSettings
from seedance_server.observation_settings import ObservationSettings
from seedance_server.service_settings import ServiceSettings
from seedance_server.setting import Setting, is_loopback

__all__ = ["Config"]

_MIN_KEY_CHARS = 16
_HTTP_URL = re.compile(r"https?://[!-~]{1,2000}")
_WEBSOCKET_URL = re.compile(r"wss?://[!-~]{1,2000}")
_MAY_BE_ZERO = {
    "idle_check_s",
    "journal_reserve_bytes",
    "metrics_tenants",
    "orphan_grace_s",
    "port",
    "run_ahead_frames",
    "shutdown_timeout_s",
    "speculative_tokens",
}


@frozen(kw_only=True, slots=False)  # slots can't have several bases
class Config(  # fields in reverse order
    LimitSettings, DeliverySettings, ObservationSettings, ServiceSettings, EngineSettings
):
    """All settings.

    Raises:
        ConfigError: On construction, naming the first setting that can't be used.
    """

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            self._check_range(field.name, getattr(self, field.name))
        if self.port > 65535:
            raise ConfigError("--port", f"must be from 0 to 65535, not {self.port}")
        for flag, key in (("--api-key", self.api_key), ("--metrics-key", self.metrics_key)):
            if key is not None and len(key) < _MIN_KEY_CHARS:
                raise ConfigError(flag, f"must have at least {_MIN_KEY_CHARS} characters")
        if self.api_key is None and self.keys_path is None and not is_loopback(self.host):
            raise ConfigError(
                "--api-key",
                f"or --keys is needed to listen on {self.host}: else everybody could use this server",
            )
        self._check_urls()
        if self.ssl_certfile is None and self.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile", "needs --ssl-certfile")
        self._check_least()
        if self.batch_bytes > self.outbox_bytes:
            raise ConfigError("--batch", "must be at most --outbox")
        if self.orphan_grace_s > self.resume_window_s:
            raise ConfigError("--orphan-grace", "must be at most --resume-window")

    def _check_least(self) -> None:
        for flag, value, least, why in (
            ("--stream-buffer", self.stream_buffer_outputs, 4, "a pause takes effect one step later"),
            ("--max-attempts", self.max_attempts, 2, "whoever began a stream is the first"),
        ):
            if value < least:
                raise ConfigError(flag, f"must be at least {least}: {why}")

    def _check_urls(self) -> None:
        for flag, url, form, words in (
            ("--reconnect-to", self.reconnect_to, _WEBSOCKET_URL, "a ws:// or wss://"),
            ("--otlp-endpoint", self.otlp_endpoint, _HTTP_URL, "an http:// or https://"),
        ):
            if url is not None and not form.fullmatch(url):
                raise ConfigError(flag, f"must be {words} URL, not {url!r}")

    def _check_range(self, name: str, value: object) -> None:
        setting: Setting = attrs.fields_dict(type(self))[name].metadata["setting"]
        if setting.choices and value not in setting.choices:
            raise ConfigError(setting.flag, f"must be one of {', '.join(setting.choices)}, not {value!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        least = 0 if name in _MAY_BE_ZERO else 1e-9
        # Written to accept, not to refuse, since NaN compares false with everything.
        if not least <= value < 2**63:
            raise ConfigError(
                setting.flag, f"must be {'at least 0' if least == 0 else 'above 0'}, not {value}"
            )
