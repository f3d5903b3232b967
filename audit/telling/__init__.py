"""One incident, one request or one page, told: in sentences, as evidence, as a table, as a drawing."""
