//! Weight formats.
