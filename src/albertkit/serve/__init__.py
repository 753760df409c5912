"""Models over HTTP, and a page that shows what they answer and what happens inside."""
