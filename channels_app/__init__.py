"""Who may send what to whom, and the accepted message."""
