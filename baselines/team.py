"""Deprecated: the former names of what `distributed` holds."""

from mikasa_robo.deprecation import deprecated_names

_HOME = f"{__package__}.distributed"

__getattr__ = deprecated_names(
    __name__,
    {
        "Team": f"{_HOME}:DistContext",
        "join_team": f"{_HOME}:join_processes",
        "team_size": f"{_HOME}:world_size",
    },
)
