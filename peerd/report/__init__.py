"""The report that people read: a page with pictures, of the tables that ``peerd analyze`` has made."""
