"""Reports: profiles on any page and as JSON. Nothing is measured or concluded here."""
