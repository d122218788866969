"""From a collection to a report that somebody reads: analyzed, saved, shown to whom it concerns."""
from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Callable, List, Optional

from npu_overflow.collect.base import Collector, Training
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Report
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import job, reports_io
from npu_overflow.training.console import Console, Script, ignore_closed_stream
from npu_overflow.training.job import Ranks
from npu_overflow.training.record import RunRecord
from npu_overflow.training.spoiled import Spoiled

__all__ = ["Delivery", "Gathered", "listeners"]

#: are told of each report of this process
listeners: List[Callable[[Report], None]] = []

#: the end of a training waits this long for a report that is being made
JOIN_SECONDS = 60.0


@dataclass(frozen=True)
class Gathered:
    """A report, the path of its saved text (None: the disk refused), and the folder analyzed."""

    report: Report
    path: Optional[str]
    folder: str


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
        record: the manifest, which the analysis reads.
        board: TensorBoard's files.
        script: knows which operator the report before named.

    Attributes:
        reports: every Report shown, oldest first.
        stop_requested: a report was made under ``on_overflow="stop"``.
        spoiled: state beside the weights that the next report says is lost.
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
        self.spoiled: Optional[Spoiled] = None
        self._training, self._ranks, self._record = training, ranks, record
        self._console, self._board, self._script = console, board, script
        self._last_culprit = script.culprit
        self._worker: Optional[_Worker] = None

    # --- making a report

    @property
    def made(self) -> int:
        """Reports shown, without surveys of healthy steps."""
        return sum(not _is_only_survey(report) for report in self.reports)

    @property
    def is_busy(self) -> bool:
        """Whether a report is being made beside the training."""
        return self._worker is not None

    def gather(self, collector: Collector) -> Optional[Gathered]:
        """End the collection, analyze and save it; None where nothing was collected."""
        collector.stop()
        manifest, tree = self._record.manifest, collector.tree
        manifest.remarks = [(code, dict(values)) for code, values in collector.remarks]
        if self.spoiled is not None:
            manifest.remarks.append((self.spoiled.code, self.spoiled.values))
        manifest.reason = collector.reason
        if tree is None and collector.reason is None:
            return None
        self._record.write(collector)  # the analysis reads it
        folder = tree or self._training.dump_path
        # what lies in a shared folder where another rank overflowed is that rank's
        theirs = tree is None or collector.reason == "other_rank"
        make = reports_io.empty if theirs else reports_io.analyzed
        report = make(folder, manifest)
        path = self._saved(report, folder)
        self._record.write(collector)  # it names the saved report
        return Gathered(report, path, folder)

    def gather_beside(self, collector: Collector) -> None:
        """The device may still be writing, and a tree can have gigabytes: ``gather`` on another
        thread; ``take`` gives what it made."""
        self._worker = _Worker(lambda: self.gather(collector), self._training.fail)

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
        if again:
            self._console.say("watch.same_culprit", name=culprit, step=step)
        elif not self._ranks.several:
            self._print(gathered, min(1, options.limit) if short else options.limit)
        else:
            self._say_of_rank(gathered, step)
        self._tell_user(report)
        if options.on_overflow == "stop" and not _is_only_survey(report):
            self.stop_requested = True

    def _say_of_rank(self, gathered: Gathered, step: int) -> None:
        """One line of each rank that has something to say: a log holds those of a thousand."""
        report = gathered.report
        if report.first is not None:
            operator = "%s %s" % (report.first.op_type, report.first.op_name)
            line = " (%s)" % report.first.location if report.first.location else ""
            files = reports_io.files_shown(gathered.path or gathered.folder)
            folder = reports_io.shown(job.shared_folder(self._training.dump_path, self._ranks))
            self._console.say(
                "watch.rank_overflowed",
                step=step,
                operator=clean(operator + line),
                files=files,
                folder=folder,
            )
        elif report.reason == "other_rank":
            self._console.say("watch.other_rank", step=step)

    def _print(self, gathered: Gathered, limit: int) -> None:
        if not self._training.options.verbose:
            return
        from npu_overflow.report import terminal

        path = gathered.path
        with ignore_closed_stream("stdout"):
            sys.stdout.write("\n")  # a progress bar may stand on this line
            terminal.print_report(
                gathered.report,
                limit=limit,
                saved=None if path is None else reports_io.files_shown(path),
                next_command="npu-overflow analyze %s" % reports_io.shown(gathered.folder),
                language=self._console.language,
            )
            sys.stdout.flush()

    def _tell_user(self, report: Report) -> None:
        tell = self._training.options.on_report
        for listener in listeners:
            listener(report)
        try:
            if tell is not None:
                tell(report)
        except Exception:
            self._console.log_failure("watch.on_report_failed")


def _is_only_survey(report: Report) -> bool:
    """Whether a report tells nothing but the headroom of a healthy step."""
    return report.headroom is not None and report.first is None and report.reason is None
