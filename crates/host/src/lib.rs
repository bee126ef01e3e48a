//! Live ranks and the command line.
