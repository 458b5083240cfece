"""XML documents and XPath 1.0: the data model of CoDD's evaluation."""
