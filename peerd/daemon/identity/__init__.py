"""Identity at work in a running daemon: enrolment, renewal, and the exchange of the CA's notices."""
