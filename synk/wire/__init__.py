"""What ranks say to each other: words, barriers, mailboxes and frames."""
