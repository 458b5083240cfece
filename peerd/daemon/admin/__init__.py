"""The routes of the admin API, and the server that offers them."""
