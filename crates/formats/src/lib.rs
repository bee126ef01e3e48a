//! What Uniference reads and writes.
