"""An independent referee: a slow second opinion on what a trace proves, written from the rules alone."""
