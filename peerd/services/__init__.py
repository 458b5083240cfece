"""Services on the overlay that plugins share: built-in plugins behind `peerd.api.Host`, sans-IO."""
