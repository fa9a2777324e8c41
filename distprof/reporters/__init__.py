"""Results for people and programs: counted numbers come in; trees, JSON, frames and files go out. No torch in here."""
