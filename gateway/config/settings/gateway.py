"""What the gateway is and serves to, as a table of the file."""

from __future__ import annotations

from typing import Annotated

from gateway.config.kinds import Text, switch, text, texts, time, whole
from gateway.config.settings.section import Section


class GatewaySettings(Section, frozen=True):
    """The gateway itself."""

    host: Annotated[
        Text,
        text(
            "Address to listen on; others than loopback need API keys. 0.0.0.0 or :: is all.",
            "an address of this machine",
            restart=True,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, whole("Port to listen on; 0 takes a free one.", 0, 65535, restart=True)
    ] = 8642
    state_dir: Annotated[
        Text | None,
        text(
            "Folder for lock, sockets, logs and prompts.",
            "a folder",
            example="~/bulkhead",
            unset="the platform's folder",
            restart=True,
        ),
    ] = None
    drain_s: Annotated[
        float, time("What running answers get to finish, before an unload or the end.")
    ] = 30.0
    keep_awake: Annotated[
        bool, switch("A Mac doesn't go to sleep by itself while requests run or models load.")
    ] = True
    allow: Annotated[
        tuple[Text, ...],
        texts(
            'If given, only models in these folders, or repositories such as "mlx-community/*".',
            "folders and repositories",
        ),
    ] = ()

    allowed_hosts: Annotated[
        tuple[Text, ...],
        texts(
            "Names that requests may have as their Host beside this machine's own; they need API "
            "keys.",
            "names",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[Text, ...],
        texts(
            "Web pages that may use everything here from a browser; no other may.",
            'origins such as "https://chat.example"',
        ),
    ] = ()
    tls_certificate: Annotated[
        Text | None,
        text(
            "Certificate in PEM, with those that vouch for it behind it; a reload takes a renewed "
            "one of the same file.",
            "a file",
            example="~/tls/mac.crt",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    tls_key: Annotated[
        Text | None,
        text(
            "The key of the certificate, in PEM and without a password; a reload takes a renewed "
            "one of the same file.",
            "a file",
            example="~/tls/mac.key",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    image_folders: Annotated[
        tuple[Text, ...],
        texts(
            "Requests may name pictures in these folders, by path or file: address; links that "
            "lead out of them are not followed.",
            "folders",
        ),
    ] = ()
    remote_images: Annotated[
        bool,
        switch("Pictures are fetched from http and https addresses, if these are of the internet."),
    ] = False
    max_connections: Annotated[
        int, whole("Connections at a time; the limit of open files may allow fewer.", 8)
    ] = 2048
    max_connections_per_address: Annotated[
        int,
        whole(
            "Of these from one address, or one /64 network of IPv6; this machine has no bound.", 1
        ),
    ] = 256

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None
