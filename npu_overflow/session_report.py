"""What a session does with a collection: analyze it, beside the training where that takes long, save it, show it to whom it concerns."""
from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any, Callable, List, Optional, Tuple

from npu_overflow import ranks, saved
from npu_overflow.collectors.base import Collector, Training
from npu_overflow.manifest import Manifest
from npu_overflow.neighbours import neighbours
from npu_overflow.options import WatchOptions
from npu_overflow.report import texts
from npu_overflow.report.model import Report

__all__ = ["Reporting"]

log = logging.getLogger("npu_overflow")


class Reporting:
    """From a collection to a report that somebody reads.

    A part of ``Session``, in a file of its own; it uses the session's state and makes none that others write.
    """

    options: WatchOptions
    reports: List[Report]
    board: Any
    stop_requested: bool
    say: Callable[..., None]
    fail: Callable[[], None]
    _collector: Optional[Collector]
    _training: Optional[Training]
    _manifest: Manifest
    _ranks: ranks.Ranks
    _step: int
    _other_rank: Optional[int]
    _last_culprit: Optional[str]
    _beside: Optional[Tuple[threading.Thread, List[Any]]]
    _change: Callable[[str], None]
    _write_manifest: Callable[[], None]

    @property
    def _language(self) -> str:
        return self.options.language or texts.language_of_user()

    def _report(self, short: bool = False) -> None:
        """The training ends while collecting: analyze what there is, save and print it; short above the traceback of one that failed."""
        self._change("reported")
        self._deliver(self._gather(), short)

    def _gather_beside(self) -> None:
        """The device may still be writing, and a tree can have gigabytes: it is waited for and analyzed beside the training.

        The report is shown by the training's own thread, between two steps.
        """
        assert self._collector is not None
        self._collector.freeze()
        made: List[Any] = []

        def gather() -> None:
            try:
                made.append(self._gather())
            except Exception:
                self.fail()

        self._beside = (threading.Thread(target=gather, name="npu_overflow_report", daemon=True), made)
        self._beside[0].start()

    def _take(self, seconds: float = 0.0) -> None:
        """Show the report that was made beside the training, once it is ready; wait for it as long as that at most."""
        if self._beside is None:
            return
        worker, made = self._beside
        worker.join(seconds)
        if worker.is_alive():
            return
        self._beside = None
        for gathered in made:
            self._deliver(gathered)

    def _gather(self) -> Optional[Tuple[Report, Optional[str], str]]:
        """Analyze what was collected and save it: (report, path of the saved one, folder), or None where nothing was."""
        assert self._collector is not None and self._training is not None
        self._collector.stop()
        tree = self._collector.tree
        self._manifest.remarks = [(code, dict(values)) for code, values in self._collector.remarks]
        self._manifest.reason = self._collector.reason
        if tree is None and self._collector.reason is None:
            return None
        self._write_manifest()  # the analysis reads it
        folder = tree or self._training.dump_path
        theirs = self._collector.reason == "other_rank"  # what lies in a shared folder then is another rank's
        report = saved.analyzed(folder, self._manifest) if tree and not theirs else saved.empty(folder, self._manifest)
        first = None if report.first is None else next((item for item in report.operators if item.rank in (None, self._ranks.rank)), report.first)
        self._manifest.finding = None if first is None else {"op_name": first.op_name, "op_type": first.op_type, "step": first.train_step}
        path = saved.save(report, folder, self._manifest, self._language)
        self._write_manifest()  # other ranks look for the finding
        return report, path, folder

    def _deliver(self, gathered: Optional[Tuple[Report, Optional[str], str]], short: bool = False) -> None:
        """Show a report, on the training's thread."""
        if gathered is None:
            self._change("watching")
            self.say("watch.nothing_collected")
            return
        report, path, folder = gathered
        self.reports.append(report)
        self.board.report(report, self._step, self._language)
        self._show(report, path, folder, 1 if short else self.options.limit)
        if self.options.on_report is not None:
            self._tell_user(report)
        if self.options.on_overflow == "stop":
            self.stop_requested = True

    def _prefixed(self, text: str) -> str:
        """With several ranks every line says whose it is."""
        mark = ranks.prefix(self._ranks)
        return "".join(mark + line if line.strip() else line for line in text.splitlines(True))

    def _tell_of_other_rank(self, last: bool = False) -> None:
        """This rank's scale fell because of another's overflow: say so, and whose it was where the path is shared and it is known by now."""
        assert self._training is not None
        step = self._other_rank
        if step is None:
            return
        others = [item for item in neighbours(self._training.dump_path, self._manifest) if item.finding is not None]
        if others:
            self.say("watch.other_rank.named", step=step, rank=others[0].rank, name=(others[0].finding or {}).get("op_name"))
            self._other_rank = None
        elif last:
            self.say("watch.other_rank", step=step)
            self._other_rank = None

    def _show(self, report: Report, path: Optional[str], folder: str, limit: int) -> None:
        culprit = report.first.op_name if report.first is not None else None
        if culprit is not None and culprit == self._last_culprit:
            self.say("watch.same_culprit", name=culprit, step=self._step)
            return
        self._last_culprit = culprit
        if self._ranks.several and report.reason == "other_rank":
            self._other_rank = self._step
            self._tell_of_other_rank()
        if self.options.verbose and self._speaks(report):
            from npu_overflow.report import terminal

            text = io.StringIO()
            several = self._ranks.several
            sys.stdout.write("\n")  # a progress bar may stand on this line
            terminal.print_report(report, file=text if several else None, limit=min(limit, self.options.limit), saved=path,
                                  next_command="npu-overflow analyze %s" % saved.shown(folder), language=self._language)
            sys.stdout.write(self._prefixed(text.getvalue()))
            sys.stdout.flush()

    def _speaks(self, report: Report) -> bool:
        """With several ranks those without a finding are quiet, and where they share the path the lowest rank with one speaks for all."""
        assert self._training is not None
        if not self._ranks.several:
            return True
        others = neighbours(self._training.dump_path, self._manifest) if report.first is not None else []
        return ranks.speaks(self._ranks, report.first is not None, [(item.rank, item.finding is not None) for item in others])

    def _tell_user(self, report: Report) -> None:
        try:
            assert self.options.on_report is not None
            self.options.on_report(report)
        except Exception:
            log.error(texts.say("watch.on_report_failed", self._language), exc_info=True)
