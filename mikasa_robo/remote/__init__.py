"""Policies in another process or on another machine, asked for actions over a websocket; docs/remote-policies.md.

`messages` packs arrays, `client` is the policy that asks a server, `server` answers. All need the extra ``remote``.
"""
