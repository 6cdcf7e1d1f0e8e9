"""What the gateway is and serves to, as a table of the file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from gateway.config.kinds import Switch, Text, Texts, Time, Whole
from gateway.config.settings.section import Key, Section


class GatewaySettings(Section, frozen=True):
    about: ClassVar[str] = "The gateway itself."

    host: Annotated[
        str,
        Key(
            Text("an address of this machine"),
            "Address to listen on; others than loopback need API keys. 0.0.0.0 or :: is all.",
            restart=True,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Key(Whole(0, 65535), "Port to listen on; 0 takes a free one.", restart=True)
    ] = 8642
    state_dir: Annotated[
        str | None,
        Key(
            Text("a folder"),
            "Folder for lock, sockets, logs and prompts.",
            example="~/bulkhead",
            unset="the platform's folder",
            restart=True,
        ),
    ] = None
    drain_s: Annotated[
        float, Key(Time(), "What running answers get to finish, before an unload or the end.")
    ] = 30.0
    keep_awake: Annotated[
        bool,
        Key(Switch(), "A Mac doesn't go to sleep by itself while requests run or models load."),
    ] = True
    allow: Annotated[
        tuple[str, ...],
        Key(
            Texts("folders and repositories"),
            'If given, only models in these folders, or repositories such as "mlx-community/*".',
        ),
    ] = ()

    allowed_hosts: Annotated[
        tuple[str, ...],
        Key(
            Texts("names"),
            "Names that requests may have as their Host beside this machine's own; they need API "
            "keys.",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Key(
            Texts('origins such as "https://chat.example"'),
            "Web pages that may use everything here from a browser; no other may.",
        ),
    ] = ()
    tls_certificate: Annotated[
        str | None,
        Key(
            Text("a file"),
            "Certificate in PEM, with those that vouch for it behind it; a reload takes a renewed "
            "one of the same file.",
            example="~/tls/mac.crt",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        Key(
            Text("a file"),
            "The key of the certificate, in PEM and without a password; a reload takes a renewed "
            "one of the same file.",
            example="~/tls/mac.key",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    image_folders: Annotated[
        tuple[str, ...],
        Key(
            Texts("folders"),
            "Requests may name pictures in these folders, by path or file: address; links that "
            "lead out of them are not followed.",
        ),
    ] = ()
    remote_images: Annotated[
        bool,
        Key(
            Switch(),
            "Pictures are fetched from http and https addresses, if these are of the internet.",
        ),
    ] = False
    max_connections: Annotated[
        int,
        Key(
            Whole(8),
            "Connections at a time; the limit of open files may allow fewer.",
        ),
    ] = 2048
    max_connections_per_address: Annotated[
        int,
        Key(
            Whole(1),
            "Of these from one address, or one /64 network of IPv6; this machine has no bound.",
        ),
    ] = 256

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None
