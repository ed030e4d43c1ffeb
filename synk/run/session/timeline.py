"""Record what all ranks do from one command to another, and write it to a file.

Session.timeline -> Timeline.resume: StartRecording on all ranks ... close: StopRecording -> file, Summary
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from synk.run.arrays.owner import Owner
from synk.run.rank.rank import Rank
from synk.run.recording.recorder import Recorder, StartRecording, StopRecording
from synk.run.recording.spans import COMMAND, Track, complete_tracks
from synk.run.recording.summary import Summary
from synk.run.recording.trace import trace
from synk.run.session.commands import INTERRUPT_SECONDS, Commands
from synk.run.session.turns import Turns
from synk.transport.commands.interfaces import CLOSE_SECONDS
from synk.transport.processes.signals import hold_signals
from synk.values.atomic_write import write_json
from synk.values.errors import SynkStateError
from synk.values.script_frames import warn_the_script


class Timeline:
    """A recording of what all ranks do, from `synk.timeline` until `close`.

    Attributes
    ----------
    path : str
        The absolute path of the file, as the script may change its working folder meanwhile.
    is_open : bool
        Whether it is still recording.
    """

    def __init__(self, run: Owner, rank: Rank, commands: Commands, turns: Turns, path: Any):
        self.path = checked_path(path)
        self.is_open = True
        self._run, self._rank, self._commands, self._turns = run, rank, commands, turns
        self._recorder: Recorder | None = None  # rank 0's
        self._summary: Summary | None = None
        self._notes: dict[str, str] = {}  # sentences on what the file lacks, and why

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def resume(self) -> None:
        """Start recording on all ranks, at first or after a restart; once it is closed, this does nothing."""
        if not self.is_open:
            return
        again = self._recorder is not None
        with self._run.turn("timeline"):
            self._run.run((StartRecording(again),))
            self._recorder = recorder = self._rank.recorder
            recorder.label = lambda: self._turns.label or COMMAND
            recorder.watch(self._commands, "run", COMMAND, lambda *command: (COMMAND, None))
        if again:
            self._notes["restart"] = "what workers did before restart() is not in it"

    def close(self) -> None:
        """Stop recording, and write the file; do nothing if it is closed, or in a child process.

        If the run is broken, the file has only what rank 0 did, and a `SynkWarning` names the rank that broke
        it.

        Raises
        ------
        SynkStateError
            If it is called within another call, as by a signal handler.
        OSError
            If the file cannot be written.
        """
        self._end(ask=True)

    def end_with_run(self) -> None:
        """Close it before the run ends, like `close`, but without long waits for other threads or ranks."""
        if self.is_open:
            with self._turns.keep_within(INTERRUPT_SECONDS) as alone, self._turns.timeout(CLOSE_SECONDS):
                self._end(ask=alone)

    def summary(self) -> Summary:
        """Return each rank's time in figures, and why ranks wait; raise SynkStateError before `close`."""
        if self._summary is None:
            raise SynkStateError("summary: the timeline is still recorded; close() it first")
        return self._summary

    def _end(self, ask: bool) -> None:
        """Stop recording and write the file; with ``ask``, the workers' tracks are in it."""
        if not self.is_open or not self._turns.is_master():
            return
        if self._turns.is_inside():
            raise self._turns.refusal("timeline.close")
        interrupt: BaseException | None = None
        try:
            self.is_open = (
                False  # inside the try block: after an interrupt here, the file is written all the same
            )
            if not ask:
                raise SynkStateError("the run was closed in the middle of a call")
            with self._run.turn("timeline"):
                found = self._run.run((StopRecording(),))[0]
        except BaseException as error:
            found = (self._own_track(),)
            self._notes["lost"] = f"what workers did is not in it: {_first_line(error)}"
            interrupt = None if isinstance(error, Exception) else error
        with hold_signals():
            self._write(found)
        if self._notes:
            said = "; ".join(self._notes.values())
            warn_the_script(f"{self.path}: {said}")
        if interrupt is not None:
            raise interrupt

    def _own_track(self) -> Track:
        """Stop recording on rank 0 alone, and return its track."""
        assert self._recorder is not None
        self._rank.recorder = None
        self._recorder.unwatch()
        return self._recorder.track()

    def _write(self, found: Sequence[Track]) -> None:
        """Write the file, and make the summary, from the recorded tracks, rank 0's first."""
        tracks = complete_tracks(found)
        for track in tracks:
            if track.n_dropped:
                said = f"the first {track.n_dropped:,} spans of rank {track.rank} are not in it"
                self._notes[f"rank {track.rank}"] = said
        self._summary = Summary(tracks, self._notes)
        write_json(self.path, trace(tracks, self._notes))


def checked_path(path: Any) -> str:
    """Return the absolute path; raise TypeError if it is no path, OSError if no file can be made there."""
    absolute = os.path.realpath(os.fsdecode(path))  # the target of a link is replaced, not the link itself
    folder = os.path.dirname(absolute)
    if os.path.isdir(absolute):
        raise IsADirectoryError(errno.EISDIR, "timeline: this is a folder; name a file in it", absolute)
    if os.path.exists(absolute) and not os.path.isfile(absolute):
        raise FileExistsError(errno.EEXIST, "timeline: this is no regular file, so it stays", absolute)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "timeline: there is no such folder; make it first", folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "timeline: files cannot be made in this folder", folder)
    return absolute


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, up to a semicolon, or the error's type."""
    said = str(error).partition(";")[0].splitlines()
    return said[0] if said else type(error).__name__
