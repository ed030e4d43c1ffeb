"""Send commands and replies between ranks on one machine: shared words, barriers, mailboxes, frames."""
