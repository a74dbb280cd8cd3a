"""The bytes on disk: declared in `layout`, one record and many records to bytes and back."""
