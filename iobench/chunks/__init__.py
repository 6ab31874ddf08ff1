"""One model of a chunked variable: how chunks are encoded, where they lie, what they make."""
