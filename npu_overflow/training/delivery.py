"""From a collection to a report that somebody reads: analyzed, saved, shown to whom it concerns."""
from __future__ import annotations

import io
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from npu_overflow.collect.base import Collector, Training
from npu_overflow.report.model import Report
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import job, reports_io
from npu_overflow.training.console import Console, Script, ignore_closed_stream
from npu_overflow.training.job import Ranks
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.record import RunRecord

__all__ = ["Delivery", "Gathered"]

#: the end of a training waits this long for a report that is being made
JOIN_SECONDS = 60.0
#: ranks on a shared path wait this long for what the lower ones find, …
LISTEN_SECONDS = 20.0
#: … where an exception has ended the training, this long
LISTEN_SHORTLY = 3.0
_POLL_SECONDS = 0.2
#: between two steps asking takes one part in so many of the time: with a thousand ranks it is slow
_SHARE = 50


@dataclass(frozen=True)
class Gathered:
    """A report, the path of its saved text (None: the disk refused), and the folder analyzed."""

    report: Report
    path: Optional[str]
    folder: str


@dataclass
class _Waiting:
    """A report that waits for the word of other ranks until the clock shows ``until``.

    Args:
        quiet: only the line that the overflow was another rank's is left to say.
        again: the report before named the same operator.
    """

    step: int
    judged: Optional[int]
    gathered: Gathered
    limit: int
    quiet: bool = False
    again: bool = False
    until: float = 0.0


class _Worker:
    """Makes one report on a thread of its own."""

    def __init__(self, make: Callable[[], Optional[Gathered]], fail: Callable[[], None]) -> None:
        self.made: List[Optional[Gathered]] = []

        def run() -> None:
            try:
                self.made.append(make())
            except Exception:
                fail()

        self.thread = threading.Thread(target=run, name="npu_overflow_report", daemon=True)
        self.thread.start()


class Delivery:
    """The reports of one training. Analysis may run beside the training; all that is shown is shown
    on the training's own thread.

    Args:
        training: its options, its dump path and ``fail``.
        ranks: this process in its job.
        record: the manifest, which the analysis and other ranks read.
        board: TensorBoard's files.
        script: knows which operator the report before named.

    Attributes:
        reports: every Report shown, oldest first.
        stop_requested: a report was made under ``on_overflow="stop"``.
    """

    def __init__(
        self,
        training: Training,
        ranks: Ranks,
        record: RunRecord,
        console: Console,
        board: Board,
        script: Script,
    ) -> None:
        self.reports: List[Report] = []
        self.stop_requested = False
        self._training, self._ranks, self._record = training, ranks, record
        self._console, self._board, self._script = console, board, script
        self._last_culprit = script.culprit
        self._worker: Optional[_Worker] = None
        self._waiting: Optional[_Waiting] = None
        self._listen_again = 0.0

    # --- making a report

    @property
    def made(self) -> int:
        """Reports shown, without surveys of healthy steps."""
        return sum(not _is_only_survey(report) for report in self.reports)

    @property
    def is_enough(self) -> bool:
        """Whether as many reports were made as the user wants."""
        return self.made >= self._training.options.max_reports

    @property
    def is_busy(self) -> bool:
        """Whether a report is being made beside the training."""
        return self._worker is not None

    def gather(self, collector: Collector, since: int) -> Optional[Gathered]:
        """End the collection, analyze and save it; None where nothing was collected.

        Args:
            since: the training step from which it ran.
        """
        collector.stop()
        manifest, tree = self._record.manifest, collector.tree
        manifest.remarks = [(code, dict(values)) for code, values in collector.remarks]
        manifest.reason = collector.reason
        if tree is None and collector.reason is None:
            return None
        self._record.write(collector)  # the analysis reads it
        folder = tree or self._training.dump_path
        # what lies in a shared folder where another rank overflowed is that rank's
        theirs = tree is None or collector.reason == "other_rank"
        make = reports_io.empty if theirs else reports_io.analyzed
        report = make(folder, manifest)
        manifest.finding = _finding(report, self._ranks.rank)
        manifest.judged = since
        path = self._saved(report, folder)
        self._record.write(collector)  # other ranks look for the finding
        return Gathered(report, path, folder)

    def gather_beside(self, collector: Collector, since: int) -> None:
        """The device may still be writing, and a tree can have gigabytes: ``gather`` on another
        thread; ``take`` gives what it made."""
        self._worker = _Worker(lambda: self.gather(collector, since), self._training.fail)

    def take(
        self, collector: Collector, wait: bool = False, last: bool = False
    ) -> List[Optional[Gathered]]:
        """What was gathered beside the training since the last call.

        Args:
            wait: until it is ready, within a bound.
            last: nobody will ask again, so say where it is going to lie.
        """
        worker = self._worker
        if worker is None:
            return []
        worker.thread.join(JOIN_SECONDS if wait else 0.0)
        if not worker.thread.is_alive():
            self._worker = None
            return worker.made
        if last:
            folder = reports_io.shown(collector.tree or self._training.dump_path)
            self._console.say("watch.late", always=True, seconds="%g" % JOIN_SECONDS, folder=folder)
        return []

    def _saved(self, report: Report, folder: str) -> Optional[str]:
        """The report's text on disk, or None where that refuses: it is printed all the same."""
        try:
            return reports_io.save(report, folder, self._record.manifest, self._console.language)
        except OSError as error:
            self._console.say_refused("watch.not_saved", folder, error)
            return None

    # --- showing it

    def show(self, gathered: Gathered, step: int, short: bool = False) -> None:
        """Show a report to the user, to ``on_report`` and on TensorBoard.

        Args:
            step: training steps that have ended.
            short: the traceback of an exception follows.
        """
        report, options = gathered.report, self._training.options
        self.reports.append(report)
        self._board.report(report, step, self._console.language)
        culprit = report.first.op_name if report.first is not None else None
        again = culprit is not None and culprit == self._last_culprit
        self._last_culprit = self._script.culprit = culprit
        limit = min(1, options.limit) if short else options.limit
        judged = self._record.manifest.judged
        shown = _Waiting(step, judged, gathered, limit, report.first is None, again)
        if not self._ranks.several:
            self._print(shown)
        # those without a finding are quiet, and of ranks that share the path the lowest speaks
        elif report.first is not None or report.reason == "other_rank":
            self._resolve_now()  # one that waits already gives way
            shown.until = time.monotonic() + LISTEN_SECONDS
            self._waiting = shown
            self._resolved(shown)
        self._tell_user(report)
        if options.on_overflow == "stop" and not _is_only_survey(report):
            self.stop_requested = True

    def listen(self, seconds: float = 0.0) -> None:
        """Say what depends on other ranks as soon as they know; wait ``seconds`` for it at most."""
        now = time.monotonic()
        if self._waiting is None or (not seconds and now < self._listen_again):
            return
        until = min(self._waiting.until, now + seconds)
        while not self._resolved(self._waiting) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        ended = time.monotonic()
        self._listen_again = ended + max(_POLL_SECONDS, _SHARE * (ended - now))

    def listen_for_the_last_time(self, failed: bool) -> None:
        """The training ends: others get the time that is left to say their word."""
        self.listen(LISTEN_SHORTLY if failed else LISTEN_SECONDS)
        self._resolve_now()

    def _resolve_now(self) -> None:
        """What still waits for other ranks waits no longer."""
        if self._waiting is not None:
            self._waiting.until = 0.0
            self._resolved(self._waiting)

    def _resolved(self, waiting: _Waiting) -> bool:
        """Speak, or be quiet for good, where that is known; True then."""
        late = time.monotonic() >= waiting.until
        others = self._others(waiting.judged)
        if waiting.quiet:
            named = next((item for item, found in others if found), None)
            if named is not None:
                name = (named.finding or {}).get("op_name")
                code, step = "watch.other_rank.named", waiting.step
                self._console.say(code, step=step, rank=named.rank, name=name)
            elif late or all(found is not None for _item, found in others):
                self._console.say("watch.other_rank", step=waiting.step)
            else:
                return False
        else:
            speaks = job.is_speaker(
                self._ranks, True, [(item.rank, found) for item, found in others]
            )
            if speaks is None and not late:
                return False
            if speaks is not False:
                self._print(waiting)
        self._waiting = None
        return True

    def _others(self, judged: Optional[int]) -> List[Tuple[Manifest, Optional[bool]]]:
        """The ranks that share the dump path: whether each found something, None: not yet known."""
        others = job.peers(self._training.dump_path, self._record.manifest)
        return [
            (item, item.finding is not None if job.has_judged(item, judged) else None)
            for item in others
        ]

    def _print(self, shown: _Waiting) -> None:
        report = shown.gathered.report
        if not self._training.options.verbose:
            return
        if shown.again and report.first is not None:
            self._console.say("watch.same_culprit", name=report.first.op_name, step=shown.step)
            return
        from npu_overflow.report import terminal

        text = io.StringIO()
        path, several = shown.gathered.path, self._ranks.several
        with ignore_closed_stream("stdout"):
            sys.stdout.write("\n")  # a progress bar may stand on this line
            terminal.print_report(
                report,
                file=text if several else None,
                limit=shown.limit,
                saved=None if path is None else reports_io.files_shown(path),
                next_command="npu-overflow analyze %s" % reports_io.shown(shown.gathered.folder),
                language=self._console.language,
            )
            sys.stdout.write(self._console.prefixed(text.getvalue()))
            sys.stdout.flush()

    def _tell_user(self, report: Report) -> None:
        tell = self._training.options.on_report
        try:
            if tell is not None:
                tell(report)
        except Exception:
            self._console.log_failure("watch.on_report_failed")


def _is_only_survey(report: Report) -> bool:
    """Whether a report tells nothing but the headroom of a healthy step."""
    return report.headroom is not None and report.first is None and report.reason is None


def _finding(report: Report, rank: int) -> Optional[Dict[str, Any]]:
    """What a manifest says of the first operator that overflowed, in this rank where it did."""
    if report.first is None:
        return None
    own = (item for item in report.operators if item.rank in (None, rank))
    first = next(own, report.first)
    return {"op_name": first.op_name, "op_type": first.op_type, "step": first.train_step}
