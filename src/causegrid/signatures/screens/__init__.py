"""Attention screens: one small file each; the registry and the records are in `base`."""

from causegrid.signatures.screens.base import (
    GenericScreen,
    RepeatedPairs,
    Scored,
    Screen,
    TaskScreen,
    generic_screen,
    screens,
    task_screen,
)

__all__ = [
    "GenericScreen",
    "RepeatedPairs",
    "Scored",
    "Screen",
    "TaskScreen",
    "generic_screen",
    "screens",
    "task_screen",
]
