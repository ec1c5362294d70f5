"""Looking into networks: what each layer makes of what it is given."""

from ptml.looking.capturing import capture
from ptml.looking.summaries import NetworkSummary, summary

__all__ = ["NetworkSummary", "capture", "summary"]
